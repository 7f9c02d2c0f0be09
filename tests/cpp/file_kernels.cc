// A library of kernels as `lower/library.py` links them: a function that calls another library,
// words that TVM writes, a list of modules. Compiled without sanitizers, which add constructors.
#include <cmath>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* __tvm_module_ctx;
void* __tvm_module_ctx = nullptr;
EXPORT void* __TVMAPISetLastError;
void* __TVMAPISetLastError = nullptr;

/*! \brief A library alone, and the tree of modules: one, which has no children. */
struct [[gnu::packed]] ModuleList {
  uint64_t bytes = sizeof(ModuleList) - sizeof(uint64_t);
  uint64_t num_entries = 2;
  uint64_t library_bytes = 4;
  char library[4] = {'_', 'l', 'i', 'b'};
  uint64_t tree_bytes = 12;
  char tree[12] = {'_', 'i', 'm', 'p', 'o', 'r', 't', '_', 't', 'r', 'e', 'e'};
  uint64_t num_rows = 2;
  uint64_t rows[2] = {0, 0};
  uint64_t num_children = 0;
};

EXPORT const ModuleList __tvm_dev_mblob;
const ModuleList __tvm_dev_mblob;

EXPORT int first(float* data, int, int, void*, int*, void*) {
  if (__TVMAPISetLastError == nullptr || __tvm_module_ctx == nullptr) return -1;
  data[0] = std::tanh(data[0]);
  return 0;
}

EXPORT int second(float* data, int, int, void*, int*, void*) {
  data[0] = std::exp(data[0]);
  return 0;
}
