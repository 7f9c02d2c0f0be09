// Kernels in the form that TVM compiles them to: a library for the executor's test. Compiled with
// the sanitizer of the test, so that races between kernels are seen too.
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "exec/devices/tvm_abi.h"

using namespace heteroplace;

#define EXPORT extern "C" __attribute__((visibility("default")))

/*! \brief Set by TVM when it loads the library, then by the executor. */
EXPORT void* __TVMBackendParallelLaunch;
void* __TVMBackendParallelLaunch = nullptr;
EXPORT void* __TVMBackendAllocWorkspace;
void* __TVMBackendAllocWorkspace = nullptr;
EXPORT void* __TVMBackendFreeWorkspace;
void* __TVMBackendFreeWorkspace = nullptr;

/*! \brief Kernels, and parts of their loops, until one fails; negative: none does. */
EXPORT std::atomic<int64_t> until_failure;
std::atomic<int64_t> until_failure{-1};

namespace {

bool Fails() { return until_failure.load() >= 0 && until_failure.fetch_sub(1) == 0; }

using Launch = int (*)(exec::FTVMParallelLambda lambda, void* cdata, int num_task);

float* Alloc(int64_t count) {
  const auto alloc =
      reinterpret_cast<decltype(exec::TvmAbi::AllocWorkspace)>(__TVMBackendAllocWorkspace);
  const auto bytes = static_cast<uint64_t>(count) * sizeof(float);
  return static_cast<float*>(alloc(exec::kDLCPU, 0, bytes, exec::kDLFloat, 32));
}

int Free(float* data) {
  return reinterpret_cast<decltype(exec::TvmAbi::FreeWorkspace)>(__TVMBackendFreeWorkspace)(
      exec::kDLCPU, 0, data);
}

struct Twice {
  const float* from;
  float* to;
  int64_t count;
};

int TwicePart(int part, exec::TVMParallelGroupEnv* env, void* closure) {
  if (Fails()) return -1;
  const auto* data = static_cast<Twice*>(closure);
  const int64_t begin = data->count * part / env->num_task;
  const int64_t count = data->count * (part + 1) / env->num_task - begin;
  // Scratch memory in the body of the loop: each thread has its own.
  float* in = Alloc(count);
  float* out = Alloc(count);
  if (in == nullptr || out == nullptr) return -1;
  std::copy_n(data->from + begin, count, in);
  for (int64_t index = 0; index < count; ++index) out[index] = in[index] * 2.0F + 1.0F;
  std::copy_n(out, count, data->to + begin);
  return Free(out) + Free(in);
}

/*! \brief Writes on which core it is, and takes some time; fails at a negative number. */
int WhoseCorePart(int part, exec::TVMParallelGroupEnv* env, void* closure) {
  const auto* data = static_cast<Twice*>(closure);
  const int64_t begin = data->count * part / env->num_task;
  const int64_t end = data->count * (part + 1) / env->num_task;
  float* scratch = Alloc(data->count);
  if (scratch == nullptr) return -1;
  for (int64_t index = begin; index < end; ++index) {
    if (data->from[index] < 0) return -1;
    data->to[index] = static_cast<float>(sched_getcpu());
  }
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::microseconds(20)) {
  }
  return Free(scratch);
}

exec::DLTensor* Argument(exec::TVMValue* arguments, int index) {
  return static_cast<exec::DLTensor*>(arguments[index].v_handle);
}

float* Data(exec::TVMValue* arguments, int index) {
  exec::DLTensor* tensor = Argument(arguments, index);
  return reinterpret_cast<float*>(static_cast<char*>(tensor->data) + tensor->byte_offset);
}

}  // namespace

/*! \brief to = left + right. */
EXPORT int add(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  const float* left = Data(arguments, 0);
  const float* right = Data(arguments, 1);
  float* to = Data(arguments, 2);
  for (int64_t i = 0; i < Argument(arguments, 2)->shape[0]; ++i) to[i] = left[i] + right[i];
  return 0;
}

/*! \brief to = 2 from + 1, as a parallel loop over a copy of what is read. */
EXPORT int twice(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  const int64_t count = Argument(arguments, 1)->shape[0];
  float* from = Alloc(count);
  if (from == nullptr) return -1;
  std::copy_n(Data(arguments, 0), count, from);
  Twice data{from, Data(arguments, 1), count};
  const int code = reinterpret_cast<Launch>(__TVMBackendParallelLaunch)(TwicePart, &data, 0);
  return code == 0 ? Free(from) : code;
}

/*! \brief to = number of the core, as a parallel loop over all that is read. */
EXPORT int whose_core(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  Twice data{Data(arguments, 0), Data(arguments, 1), Argument(arguments, 1)->shape[0]};
  return reinterpret_cast<Launch>(__TVMBackendParallelLaunch)(WhoseCorePart, &data, 0);
}

/*! \brief to = number of the thread; takes as many milliseconds as what is read says. */
EXPORT int whose_thread(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  std::this_thread::sleep_for(std::chrono::duration<float, std::milli>(Data(arguments, 0)[0]));
  float* to = Data(arguments, 1);
  std::fill_n(to, Argument(arguments, 1)->shape[0], static_cast<float>(gettid()));
  return 0;
}

/*! \brief to = how late sleeps of the thread may end, in ns. */
EXPORT int timer_slack(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  float* to = Data(arguments, 1);
  std::fill_n(to, Argument(arguments, 1)->shape[0], static_cast<float>(prctl(PR_GET_TIMERSLACK)));
  return 0;
}

/*! \brief to = from; fails if the first number is negative, and then leaves its scratch behind. */
EXPORT int keep_positive(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  const float* from = Data(arguments, 0);
  float* to = Data(arguments, 1);
  const int64_t count = Argument(arguments, 1)->shape[0];
  float* scratch = Alloc(count);
  if (scratch == nullptr || from[0] < 0) return -1;
  std::copy_n(from, count, scratch);
  std::copy_n(scratch, count, to);
  return Free(scratch);
}

namespace {

int32_t* Integers(exec::TVMValue* arguments, int index) {
  return static_cast<int32_t*>(Argument(arguments, index)->data);
}

int64_t Count(exec::TVMValue* arguments, int index) {
  const exec::DLTensor* tensor = Argument(arguments, index);
  int64_t count = 1;
  for (int axis = 0; axis < tensor->ndim; ++axis) count *= tensor->shape[axis];
  return count;
}

}  // namespace

/*! \brief Seats, loads and offsets of a router = what the caller has chosen. */
EXPORT int decide(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  for (int each = 0; each < 3; ++each) {
    std::copy_n(Integers(arguments, each), Count(arguments, each), Integers(arguments, each + 3));
  }
  return 0;
}

/*! \brief Rows of a routed buffer (3) = the cells (0) that seats (1) and offsets (2) send there. */
EXPORT int dispatch(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  const int64_t* shape = Argument(arguments, 1)->shape;
  const int64_t extent = Argument(arguments, 0)->shape[1];
  for (int64_t cell = 0; cell < shape[0]; ++cell) {
    for (int64_t branch = 0; branch < shape[1]; ++branch) {
      const int64_t seat = Integers(arguments, 1)[cell * shape[1] + branch];
      if (seat == 0) continue;
      const int64_t row = Integers(arguments, 2)[branch] + seat - 1;
      std::copy_n(Data(arguments, 0) + cell * extent, extent, Data(arguments, 3) + row * extent);
    }
  }
  return 0;
}

/*! \brief Cells (3) = the sums of their rows in a routed buffer (0); without a seat 0. */
EXPORT int combine(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  const int64_t* shape = Argument(arguments, 1)->shape;
  const int64_t extent = Argument(arguments, 3)->shape[1];
  float* to = Data(arguments, 3);
  std::fill_n(to, shape[0] * extent, 0.0F);
  for (int64_t cell = 0; cell < shape[0]; ++cell) {
    for (int64_t branch = 0; branch < shape[1]; ++branch) {
      const int64_t seat = Integers(arguments, 1)[cell * shape[1] + branch];
      if (seat == 0) continue;
      const int64_t row = Integers(arguments, 2)[branch] + seat - 1;
      const float* from = Data(arguments, 0) + row * extent;
      for (int64_t i = 0; i < extent; ++i) to[cell * extent + i] += from[i];
    }
  }
  return 0;
}

/*! \brief The last = the sum of the active ones of those behind the loads (0). */
EXPORT int select_active(exec::TVMValue* arguments, int*, int count, exec::TVMValue*, int*, void*) {
  if (Fails()) return -1;
  const int64_t extent = Argument(arguments, count - 1)->shape[0];
  float* to = Data(arguments, count - 1);
  std::fill_n(to, extent, 0.0F);
  for (int branch = 0; branch < count - 2; ++branch) {
    if (Integers(arguments, 0)[branch] == 0) continue;
    const float* from = Data(arguments, branch + 1);
    for (int64_t i = 0; i < extent; ++i) to[i] += from[i];
  }
  return 0;
}

namespace {

/*! \brief Calls of `arrive` so far. */
std::atomic<int64_t> num_arrived{0};

}  // namespace

/*! \brief to = from; tells `await_arrivals`. */
EXPORT int arrive(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  std::copy_n(Data(arguments, 0), Argument(arguments, 1)->shape[0], Data(arguments, 1));
  num_arrived.fetch_add(1);
  return 0;
}

/*! \brief to = from, once `arrive` was called as often as the first element of `from` says; fails
 * if that does not come. */
EXPORT int await_arrivals(exec::TVMValue* arguments, int*, int, exec::TVMValue*, int*, void*) {
  const float* from = Data(arguments, 0);
  const auto start = std::chrono::steady_clock::now();
  while (static_cast<float>(num_arrived.load()) < from[0]) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) return -1;
    sched_yield();
  }
  std::copy_n(from, Argument(arguments, 1)->shape[0], Data(arguments, 1));
  return 0;
}
