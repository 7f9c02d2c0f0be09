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
  shared.release();
  return WeightsArray(map.data(), {static_cast<size_t>(map.bytes())}, owner);
}

}  // namespace

void BindFile(nb::module_& module) {
  nb::class_<exec::CompiledFile>(module, "CompiledFile",
                                 "A compiled file; see src/exec/file/compiled_file.h.")
      .def("__init__", &MakeFile, nb::arg("path"), nb::arg("trusted_keys").none(),
           "Open a file and read its texts; nothing is mapped.")
      .def("check", &exec::CompiledFile::Check, nb::call_guard<WithoutGil>(),
           "Check code and weights too.")
      .def("load", &exec::CompiledFile::Load, nb::call_guard<WithoutGil>(),
           "Check all, copy the code and map the weights.")
      .def(
          "missing",
          [](const exec::CompiledFile& self, const std::string& libtvm_path, int host) {
            return self.Missing(exec::LoadTvmAbi(libtvm_path), host);
          },
          nb::arg("libtvm_path"), nb::arg("host"),
          "What it needs on a host of processor and GPUs that is not here.")
      .def("check_signature", &exec::CompiledFile::CheckSignature,
           "Check that a signature is of this content.")
      .def("signer", &exec::CompiledFile::signer, "Public key, hexadecimal; '': not signed.")
      .def(
          "source", [](const exec::CompiledFile& self) { return ToBytes(self.Source()); },
          "The Relay module that it was made from, bytes; empty: it has none.")
      .def(
          "checked_weights",
          [](exec::CompiledFile& self) {
            std::shared_ptr<const exec::WeightsMap> weights;
            {
              const WithoutGil unlocked;
              self.Check();
              weights = self.MapWeights();
            }
            return Weights(std::move(weights));
          },
          nb::rv_policy::automatic, "Check all and map the weights; the code is not loaded.")
      .def(
          "check_host",
          [](const exec::CompiledFile& self, const std::string& libtvm_path, int host) {
            self.CheckHost(exec::LoadTvmAbi(libtvm_path), host);
          },
          nb::arg("libtvm_path"), nb::arg("host"),
          "Check that processor and GPUs can run the code of a host.")
      .def_prop_ro(
          "program_text",
          [](const exec::CompiledFile& self) { return ToBytes(self.program_text()); },
          "The program, bytes.")
      .def_prop_ro(
          "manifest", [](const exec::CompiledFile& self) { return ToBytes(self.manifest()); },
          "JSON, bytes.")
      .def_prop_ro("code_path", &exec::CompiledFile::code_path,
                   "What loaders take, as long as the object lives. After `load`.")
      .def_prop_ro(
          "weights", [](const exec::CompiledFile& self) { return Weights(self.weights()); },
          nb::rv_policy::automatic, "The mapped weights, uint8. After `load`.");
  nb::class_<exec::SealedCode>(module, "SealedCode",
                               "A library of kernels in memory; see src/exec/file/sealed_code.h.")
      .def("__init__", &MakeSealedCode, nb::arg("name"), nb::arg("image"), "Copy a library.")
      .def_prop_ro("path", &exec::SealedCode::path, "What loaders take.");
  module.def(
      "sign_tail",
      [](const nb::bytes& key_path, const nb::bytes& tail) {
        return ToBytes(exec::SignTail(ToString(key_path), ToString(tail)));
      },
      nb::arg("key_path"), nb::arg("tail"), "Public key and signature of the end of a file.");
  module.def("known_features", &exec::KnownFeatures,
             "Names of the features of processors that code may need.");
  module.def("present_features", &exec::PresentFeatures, "Those that this processor has.");
  module.def("machine_name", &exec::MachineName, "As in the needs of a file.");
}

}  // namespace heteroplace::bind
