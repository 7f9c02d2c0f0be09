// Current devices and contexts of threads, by the functions of libcudart and of libcuda.
#include "runtime.h"

using namespace fake;

namespace {

struct Context {
  int device;
};

/*! \brief The one of each device that the runtime works in. */
Context* Primary(int device) {
  static Context* contexts = [] {
    auto* made = new Context[kMaxDevices];
    for (int i = 0; i < kMaxDevices; ++i) made[i].device = i;
    return made;
  }();
  return &contexts[device];
}

/*! \brief Of the calling thread; null: none. */
Context*& Current() {
  static thread_local Context* context = nullptr;
  return context;
}

/*! \brief The device that the calling thread has chosen, for where it has no context. */
int& ChosenDevice() {
  static thread_local int device = 0;
  return device;
}

Context* MakePrimary(int device) {
  std::lock_guard lock(Get().mutex);
  Get().has_context[device] = true;
  return Primary(device);
}

}  // namespace

int fake::CurrentDevice() { return Current() == nullptr ? ChosenDevice() : Current()->device; }

bool fake::HasCurrentContext() { return Current() != nullptr; }

void fake::MakeChosenContext() {
  Get().has_context[ChosenDevice()] = true;
  Current() = Primary(ChosenDevice());
}

/*! \brief As of CUDA 12: the device has a context then. */
FAKE_EXPORT int cudaSetDevice(int device) {
  BEGIN(kSurvives, -1);
  if (device < 0 || device >= Get().num_devices) return Return(kInvalidDevice);
  ChosenDevice() = device;
  Current() = MakePrimary(device);
  return Return(0);
}

FAKE_EXPORT int cudaGetDevice(int* device) {
  BEGIN(kSurvives, -1);
  *device = CurrentDevice();
  return Return(0);
}

FAKE_EXPORT int cuDevicePrimaryCtxRetain(void** out, int device) {
  if (const int error = Begin(__func__, kSurvives); error != 0) return error;
  if (device < 0 || device >= Get().num_devices) return kInvalidDevice;
  *out = MakePrimary(device);
  return 0;
}

FAKE_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  std::lock_guard lock(Get().mutex);
  *flags = 0;
  *is_active = Get().has_context[device];
  return 0;
}

FAKE_EXPORT int cuCtxGetCurrent(void** out) {
  if (const int error = Begin(__func__, kSurvives); error != 0) return error;
  *out = Current();
  return 0;
}

FAKE_EXPORT int cuCtxSetCurrent(void* context) {
  if (const int error = Begin(__func__, kSurvives); error != 0) return error;
  Current() = static_cast<Context*>(context);
  return 0;
}

FAKE_EXPORT int cuCtxCreate_v2(void** out, unsigned, int device) {
  Current() = new Context{device};
  *out = Current();
  return 0;
}

FAKE_EXPORT int cuCtxDestroy_v2(void* context) {
  if (Current() == context) Current() = nullptr;
  delete static_cast<Context*>(context);
  return 0;
}
