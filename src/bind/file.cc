// `_core.CompiledFile`, `_core.SealedCode`: files, and libraries of kernels, on their way to an
// executor.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <new>
#include <utility>

#include "bind/bind.h"
#include "bind/gil.h"
#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/own_runtime.h"
#include "exec/file/compiled_file.h"
#include "exec/file/processor.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using WeightsArray = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>, nb::c_contig>;

/*! \brief A path or a library as Python has it: bytes, of which some may be zero or no text. */
std::string ToString(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::bytes ToBytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

void MakeFile(exec::CompiledFile* place, const nb::bytes& path,
              const std::optional<std::vector<nb::bytes>>& trusted_keys) {
  const std::string name = ToString(path);
  exec::FileOptions options;
  if (trusted_keys.has_value()) {
    options.trusted_keys.emplace();
    for (const nb::bytes& key : *trusted_keys) options.trusted_keys->push_back(ToString(key));
  }
  const WithoutGil unlocked;
  new (place) exec::CompiledFile(name, options);
}

void MakeSealedCode(exec::SealedCode* place, const std::string& name, const nb::bytes& image) {
  const std::string bytes = ToString(image);
  const WithoutGil unlocked;
  new (place) exec::SealedCode(name, bytes);
}

/*! \brief Mapped weights as an array, which keeps them. */
WeightsArray Weights(std::shared_ptr<const exec::WeightsMap> weights) {
  using Shared = std::shared_ptr<const exec::WeightsMap>;
  auto shared = std::make_unique<Shared>(std::move(weights));
  const exec::WeightsMap& map = **shared;
  nb::capsule owner(shared.get(), [](void* p) noexcept { delete static_cast<Shared*>(p); });
  static_cast<void>(shared.release());
  return WeightsArray(map.data(), {static_cast<size_t>(map.bytes())}, owner);
}

/*! \brief The same, of a file of which all is checked. */
WeightsArray CheckedWeights(exec::CompiledFile& self) {
  std::shared_ptr<const exec::WeightsMap> weights;
  {
    const WithoutGil unlocked;
    self.Check();
    weights = self.MapWeights();
  }
  return Weights(std::move(weights));
}

void Load(exec::CompiledFile& self, int host) {
  Unlocked([&] { self.Load(); });
  self.CheckHost(host);
}

void BindCompiledFile(nb::module_& module) {
  using File = exec::CompiledFile;
  nb::class_<File>(module, "CompiledFile", "A compiled file; see src/exec/file/compiled_file.h.")
      .def("__init__", &MakeFile, nb::arg("path"), nb::arg("trusted_keys").none(),
           "Open a file and read its texts; nothing is mapped.")
      .def_prop_ro(
          "program_bytes", [](const File& self) { return ToBytes(self.program_text()); },
          "The program.")
      .def_prop_ro(
          "manifest_bytes", [](const File& self) { return ToBytes(self.manifest()); }, "JSON.")
      .def("check", &File::Check, nb::call_guard<WithoutGil>(), R"(
Check code and weights too, of which nothing is loaded.

Raises
------
ArtifactError
    They are damaged, or do not belong to the program.
)")
      .def("load", &Load, nb::arg("host") = 0, R"(
Check all, make the private copy of the code and map the weights.

Parameters
----------
host
    Rank of the host that this process runs.

Raises
------
ArtifactError
    As `check`.
ExecutionError
    This processor or a GPU cannot run the code.
)")
      .def("missing", &File::Missing, nb::arg("host") = 0, R"(
Say what it needs of the processor and of GPUs that is not here; empty: nothing.

Parameters
----------
host
    Rank of the host that this process runs.

Raises
------
ArtifactError
    The file has no such host.
)")
      .def_prop_ro("signer", &File::signer,
                   "The public key that its signature is by, in hex; \"\": it is not signed.")
      .def("check_signature", &File::CheckSignature, R"(
Check that a signature is of this content and by `signer`, whoever that is.

Raises
------
ArtifactError
    It is not.
ExecutionError
    There is no library for signatures.
)")
      .def(
          "source", [](const File& self) { return ToBytes(self.Source()); }, R"(
Return the Relay module that it was made from (`relay/source.py`); empty: none.

Raises
------
ArtifactError
    It is damaged.
)")
      .def("checked_weights", &CheckedWeights, nb::rv_policy::automatic, R"(
Check all, and return the weights where they are mapped; the code is not loaded.

Raises
------
ArtifactError
    As `check`.
ExecutionError
    The system cannot map them.
)")
      .def_prop_ro("code_path", &File::code_path,
                   "What loaders take, as long as this object lives. After `load`.")
      .def_prop_ro(
          "weights", [](const File& self) { return Weights(self.weights()); },
          nb::rv_policy::automatic,
          "The weights where they are mapped, as long as the array lives. After `load`.");
}

}  // namespace

void BindFile(nb::module_& module) {
  BindCompiledFile(module);
  nb::class_<exec::SealedCode>(module, "SealedCode", nb::is_weak_referenceable(),
                               "A library of kernels, as memory which loaders take by a path.")
      .def("__init__", &MakeSealedCode, nb::arg("name"), nb::arg("image"), R"(
Copy a library.

Parameters
----------
name
    What it is, for messages.
image
    The shared library.

Raises
------
ExecutionError
    The system has no memory for it.
)")
      .def_prop_ro("path", &exec::SealedCode::path,
                   "What loaders take, as long as this object lives.");
  module.def(
      "sign_tail",
      [](const nb::bytes& key_path, const nb::bytes& tail) {
        return ToBytes(exec::SignTail(ToString(key_path), ToString(tail)));
      },
      nb::arg("key_path"), nb::arg("tail"), "Public key and signature of the end of a file.");
  module.def("needs_tvm", &exec::NeedsTvm, nb::call_guard<WithoutGil>(), nb::arg("library_path"),
             nb::arg("program_text"), R"(
Whether a program needs TVM's library, to be run with its library of kernels.

It does if it uses a GPU, or if kernels call packed functions (sorting) or barriers of TVM.

Raises
------
ArtifactError
    The library cannot be loaded, or the program is wrong.
)");
  module.def(
      "cuda_capability", &exec::FindCapability, nb::arg("index"),
      "Compute capability of a GPU, 10 times major + minor; None: there is no such GPU, or no "
      "driver.");
  module.def("known_features", &exec::KnownFeatures,
             "Names of the features of processors that code may need.");
  module.def("present_features", &exec::PresentFeatures, "Those that this processor has.");
  module.def("machine_name", &exec::MachineName,
             "Return the name of machines like this one, as in the needs of a file.");
}

}  // namespace heteroplace::bind
