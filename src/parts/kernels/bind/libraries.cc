// `_core.library_version`, `_core.library_algorithms`: what NVIDIA's libraries offer on this
// machine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/gil.h"
#include "parts/kernels/algorithms.h"
#include "parts/kernels/registration.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

int64_t LibraryVersion(const std::string& libtvm_path, const std::string& library) {
  const WithoutGil unlocked;
  return exec::LibraryVersion(exec::LoadTvmAbi(libtvm_path), library);
}

std::vector<std::string> FindAlgorithms(const std::string& libtvm_path, int device,
                                        const std::string& kernel, int64_t max_workspace_bytes,
                                        int max_count) {
  const WithoutGil unlocked;
  return exec::FindAlgorithms(exec::LoadTvmAbi(libtvm_path), device, kernel, max_workspace_bytes,
                              max_count);
}

}  // namespace

void BindKernels(nb::module_& module) {
  exec::RegisterNvidiaKernels();
  module.def("library_version", &LibraryVersion, nb::arg("libtvm_path"), nb::arg("library"), R"(
Return the version of a library, as 120903 for 12.9.3.

Parameters
----------
library
    "cublaslt" or "cudnn".

Raises
------
ExecutionError
    There is no cuBLASLt of CUDA 12 or 13, no cuDNN 9, or TVM has no CUDA.
ArtifactError
    `library` is none of them.
)");
  module.def("library_algorithms", &FindAlgorithms, nb::arg("libtvm_path"), nb::arg("device"),
             nb::arg("kernel"), nb::arg("max_workspace_bytes"), nb::arg("max_count"), R"(
Return a kernel with each algorithm that its library offers, likely ones first.

Parameters
----------
libtvm_path
    Of the TVM in use.
device
    Ordinal of a GPU.
kernel
    Symbol without an algorithm (`src/parts/kernels/nvidia_kernel.h`).
max_workspace_bytes
    That an algorithm may need.
max_count
    Of algorithms.

Returns
-------
list of str
    Symbols; empty: the library cannot compute the kernel there.

Raises
------
ArtifactError
    `kernel` is none.
ExecutionError
    There is no such library or device, or it fails.
)");
}

}  // namespace heteroplace::bind
