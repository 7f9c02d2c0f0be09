// Kernels in the form that TVM compiles them to: a library for the executor's test. Compiled with
// the sanitizer of the test, so that races between kernels are seen too.
#include "exec/tvm_abi.h"

using namespace heteroplace;

namespace {

using Launch = int (*)(FTVMParallelLambda lambda, void* cdata, int num_task);

struct Twice {
  const float* from;
  float* to;
  int64_t count;
};

int TwicePart(int part, TVMParallelGroupEnv* env, void* closure) {
  const auto* data = static_cast<Twice*>(closure);
  const int64_t end = data->count * (part + 1) / env->num_task;
  for (int64_t index = data->count * part / env->num_task; index < end; ++index) {
    data->to[index] = data->from[index] * 2.0F + 1.0F;
  }
  return 0;
}

DLTensor* Argument(TVMValue* arguments, int index) {
  return static_cast<DLTensor*>(arguments[index].v_handle);
}

float* Data(TVMValue* arguments, int index) {
  DLTensor* tensor = Argument(arguments, index);
  return reinterpret_cast<float*>(static_cast<char*>(tensor->data) + tensor->byte_offset);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

/*! \brief Set by TVM when it loads the library, then by the executor. */
EXPORT void* __TVMBackendParallelLaunch;
void* __TVMBackendParallelLaunch = nullptr;

/*! \brief to = left + right. */
EXPORT int add(TVMValue* arguments, int*, int, TVMValue*, int*, void*) {
  const float* left = Data(arguments, 0);
  const float* right = Data(arguments, 1);
  float* to = Data(arguments, 2);
  for (int64_t i = 0; i < Argument(arguments, 2)->shape[0]; ++i) to[i] = left[i] + right[i];
  return 0;
}

/*! \brief to = 2 from + 1, as a parallel loop. */
EXPORT int twice(TVMValue* arguments, int*, int, TVMValue*, int*, void*) {
  Twice data{Data(arguments, 0), Data(arguments, 1), Argument(arguments, 1)->shape[0]};
  return reinterpret_cast<Launch>(__TVMBackendParallelLaunch)(TwicePart, &data, 0);
}

/*! \brief to = from; fails if the first number is negative. */
EXPORT int keep_positive(TVMValue* arguments, int*, int, TVMValue*, int*, void*) {
  const float* from = Data(arguments, 0);
  float* to = Data(arguments, 1);
  if (from[0] < 0) return -1;
  for (int64_t i = 0; i < Argument(arguments, 1)->shape[0]; ++i) to[i] = from[i];
  return 0;
}
