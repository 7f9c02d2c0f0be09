// `_core.cublaslt_version`, `_core.cublaslt_algorithms`: what the library offers on this machine.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/gil.h"
#include "exec/devices/cuda_products.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

int64_t CublasLtVersion(const std::string& libtvm_path) {
  const WithoutGil unlocked;
  return exec::CublasLtVersion(exec::LoadTvmAbi(libtvm_path));
}

std::vector<std::string> FindAlgorithms(const std::string& libtvm_path, int device,
                                        const std::string& product, int64_t max_workspace_bytes,
                                        int max_count) {
  const WithoutGil unlocked;
  const exec::Product asked = exec::ParseProduct(product);
  std::vector<std::string> found;
  for (const exec::Product& each : exec::FindAlgorithms(exec::LoadTvmAbi(libtvm_path), device,
                                                        asked, max_workspace_bytes, max_count)) {
    found.push_back(each.ToText());
  }
  return found;
}

}  // namespace

void BindProducts(nb::module_& module) {
  module.def("cublaslt_version", &CublasLtVersion, nb::arg("libtvm_path"),
             "Version of cuBLASLt, as 120903 for 12.9.3.");
  module.def("cublaslt_algorithms", &FindAlgorithms, nb::arg("libtvm_path"), nb::arg("device"),
             nb::arg("product"), nb::arg("max_workspace_bytes"), nb::arg("max_count"),
             "The product with each algorithm that the library offers on a CUDA device.");
}

}  // namespace heteroplace::bind
