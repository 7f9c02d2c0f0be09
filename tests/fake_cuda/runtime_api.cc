// The functions of libcudart: devices, memory, streams, events, captures.
#include <sys/mman.h>

#include <cstring>

#include "fake.h"

using namespace fake;

namespace {

thread_local int last_error = 0;

/*! \brief Keeps a function's result as the thread's last error. */
int Return(int error) {
  if (error != 0) last_error = error;
  return error;
}

#define BEGIN(kind, device)                                                    \
  if (const int begin_error = Begin(__func__, kind, device); begin_error != 0) \
  return Return(begin_error)

/*! \brief Says why a copy is wrong when its turn comes; the copy then does not happen. */
void DoCopy(void* dst, const void* src, size_t bytes, int device, const char* function) {
  // Pageable memory was refused, or copied by the calling thread, when the copy was issued.
  for (const std::string& why :
       {PlaceOf(dst) == -2 ? "" : WhyNotUsable(dst, bytes, -1, "target"),
        PlaceOf(src) == -2 ? "" : WhyNotUsable(src, bytes, -1, "source")}) {
    if (!why.empty()) {
      Broken(std::string(function) + ": " + why, 0);
      return;
    }
  }
  static_cast<void>(device);
  std::memcpy(dst, src, bytes);
}

int IssueCopy(void* dst, const void* src, size_t bytes, void* handle, const char* function) {
  auto stream = FindStream(handle, function);
  if (stream == nullptr) return Return(kInvalidHandle);
  const bool is_pageable = PlaceOf(dst) == -2 || PlaceOf(src) == -2;
  for (const std::string& why :
       {PlaceOf(dst) == -2 ? "" : WhyNotUsable(dst, bytes, -1, "target"),
        PlaceOf(src) == -2 ? "" : WhyNotUsable(src, bytes, -1, "source")}) {
    if (!why.empty()) return Return(Broken(std::string(function) + ": " + why, kInvalidValue));
  }
  const int device = stream->device;
  const std::string name = function;
  Issue(stream.get(), {[=] { DoCopy(dst, src, bytes, device, name.c_str()); }});
  if (is_pageable) {
    // CUDA stages such a copy and may hold the caller: in a run only if nothing could be pinned.
    bool is_worker;
    {
      std::lock_guard lock(Get().mutex);
      is_worker = Get().is_running && Get().can_pin && std::this_thread::get_id() != Get().caller;
    }
    if (is_worker) Broken(name + ": pageable memory during a run", 0);
    stream->Drain();
  }
  return Return(0);
}

int MakeStream(void** out) {
  auto stream = std::make_shared<Stream>(CurrentDevice());
  *out = stream.get();
  std::lock_guard lock(Get().mutex);
  Get().streams[*out] = std::move(stream);
  return Return(0);
}

int MakeEvent(void** out, bool is_timed) {
  auto event = std::make_shared<Event>();
  event->device = CurrentDevice();
  event->is_timed = is_timed;
  *out = event.get();
  std::lock_guard lock(Get().mutex);
  Get().events[*out] = std::move(event);
  return Return(0);
}

/*! \brief Whether a stream is captured: nobody may ask about it then, or wait for it. */
bool IsCaptured(Stream* stream, const char* function) {
  std::lock_guard lock(Get().mutex);
  if (stream->capture == nullptr) return false;
  stream->is_capture_broken = true;
  Get().reports.push_back(std::string(function) + ": the stream is captured");
  return true;
}

/*! \brief The number of an event's last record; 0 and a report if there is none. */
uint64_t LastRecord(Event* event, const char* function) {
  std::lock_guard lock(event->mutex);
  if (event->issued == 0) {
    Broken(std::string(function) + ": the event was never recorded", 0);
  }
  return event->issued;
}

const char* Describe(int error) {
  switch (error) {
    case 0:
      return "no error";
    case 1:
      return "invalid argument";
    case 2:
      return "out of memory";
    case 46:
      return "all CUDA-capable devices are busy or unavailable";
    case 98:
      return "invalid device function";
    case 100:
      return "no CUDA-capable device is detected";
    case 101:
      return "invalid device ordinal";
    case 209:
      return "no kernel image is available for execution on the device";
    case 214:
      return "uncorrectable ECC error encountered";
    case 400:
      return "invalid resource handle";
    case 500:
      return "named symbol not found";
    case 600:
      return "device not ready";
    case 700:
      return "an illegal memory access was encountered";
    case 701:
      return "too many resources requested for launch";
    case 712:
      return "part or all of the requested memory range is already mapped";
    case 719:
      return "unspecified launch failure";
    case 801:
      return "operation not supported";
    case 900:
      return "operation not permitted when stream is capturing";
    case 999:
      return "unknown error";
  }
  return "an error of the fake";
}

}  // namespace

FAKE_EXPORT int cudaGetDeviceCount(int* count) {
  BEGIN(kPlain, -1);
  std::lock_guard lock(Get().mutex);
  *count = Get().num_devices;
  return Return(*count == 0 ? 100 : 0);
}

FAKE_EXPORT int cudaSetDevice(int device) {
  BEGIN(kSurvives, -1);
  if (device < 0 || device >= Get().num_devices) return Return(kInvalidDevice);
  CurrentDevice() = device;
  return Return(0);
}

FAKE_EXPORT int cudaGetDevice(int* device) {
  BEGIN(kSurvives, -1);
  *device = CurrentDevice();
  return Return(0);
}

FAKE_EXPORT int cudaGetLastError() {
  const int error = last_error;
  last_error = 0;
  return error;
}

FAKE_EXPORT int cudaPeekAtLastError() { return last_error; }

FAKE_EXPORT const char* cudaGetErrorString(int error) { return Describe(error); }

int fake::AttributeOf(int attribute) {
  switch (attribute) {
    case 1:
      return 1024;  // threads of a block
    case 2:
    case 3:
      return 1024;
    case 4:
      return 64;
    case 5:
      return 2147483647;  // blocks
    case 6:
    case 7:
      return 65535;
    case 8:
      return 48 << 10;  // shared memory of a block
    case 10:
      return 32;  // threads of a warp
    case 12:
      return 65536;  // registers
    case 13:
      return 1'500'000;  // clock, kHz
    case 16:
      return 4;  // multiprocessors
    case 75:
      return 8;  // compute capability
    case 76:
      return 0;
    case 122:
      return Get().has_words;  // words that streams wait for and write
    default:
      return 0;
  }
}

FAKE_EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  BEGIN(kSurvives, -1);
  if (device < 0 || device >= Get().num_devices) return Return(kInvalidDevice);
  *value = fake::AttributeOf(attribute);
  return Return(0);
}

/*! \brief Only what TVM reads of the structure: the name and, behind ids, the bytes of memory. */
FAKE_EXPORT int cudaGetDeviceProperties_v2(char* properties, int device) {
  BEGIN(kSurvives, -1);
  if (device < 0 || device >= Get().num_devices) return Return(kInvalidDevice);
  std::memset(properties, 0, 1032);
  std::strcpy(properties, "Fake GPU");
  const size_t bytes = size_t{8} << 30;
  std::memcpy(properties + 288, &bytes, sizeof(bytes));
  return Return(0);
}

FAKE_EXPORT int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  BEGIN(kPlain, -1);
  *can = Get().has_peers && device != peer;
  return Return(0);
}

FAKE_EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  std::lock_guard lock(Get().mutex);
  bool& is_enabled = Get().peers[CurrentDevice()][peer];
  if (is_enabled) return Return(kPeerAlreadyEnabled);
  is_enabled = true;
  return Return(0);
}

FAKE_EXPORT int cudaDeviceDisablePeerAccess(int peer) {
  BEGIN(kChangesMemory | kNotInCapture | kReleases, -1);
  std::lock_guard lock(Get().mutex);
  bool& is_enabled = Get().peers[CurrentDevice()][peer];
  if (!is_enabled) return Return(kPeerNotEnabled);
  is_enabled = false;
  return Return(0);
}

/*! \brief Whether a device's memory may be used by another one: for tests. */
FAKE_EXPORT int fake_cuda_has_peer(int device, int peer) {
  std::lock_guard lock(Get().mutex);
  return Get().peers[device][peer];
}

FAKE_EXPORT int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  BEGIN(kPlain, -1);
  *free_bytes = size_t{7} << 30;
  *total_bytes = size_t{8} << 30;
  return Return(0);
}

FAKE_EXPORT int cudaMalloc(void** data, size_t bytes) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  *data = TakeMemory(bytes, CurrentDevice());
  return Return(*data == nullptr ? kOutOfMemory : 0);
}

FAKE_EXPORT int cudaFree(void* data) {
  BEGIN(kBlocks | kChangesMemory | kNotInCapture | kReleases, -1);
  if (data == nullptr) return Return(0);
  const int device = PlaceOf(data);
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard lock(Get().mutex);
    for (auto& [handle, stream] : Get().streams) {
      if (stream->device == device) streams.push_back(stream);
    }
  }
  for (auto& stream : streams) {
    // Nobody can ask a device that is lost whether it is idle.
    if (!stream->IsIdle() && !HasFault(device)) {
      Broken("cudaFree: work of the device is pending", 0);
    }
    stream->Drain();
  }
  if (!GiveMemory(data, device < 0 ? 0 : device)) {
    return Return(Broken("cudaFree: memory that cudaMalloc has not given", kInvalidValue));
  }
  return Return(0);
}

FAKE_EXPORT int cudaHostAlloc(void** data, size_t bytes, unsigned) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  if (!Get().can_pin) return Return(kOutOfMemory);
  *data = TakeMemory(bytes, -1);
  return Return(*data == nullptr ? kOutOfMemory : 0);
}

FAKE_EXPORT int cudaMallocHost(void** data, size_t bytes) { return cudaHostAlloc(data, bytes, 0); }

FAKE_EXPORT int cudaFreeHost(void* data) {
  BEGIN(kBlocks | kChangesMemory | kNotInCapture | kReleases, -1);
  if (data == nullptr || GiveMemory(data, -1)) return Return(0);
  return Return(Broken("cudaFreeHost: memory that cudaHostAlloc has not given", kInvalidValue));
}

FAKE_EXPORT int cudaHostRegister(void* data, size_t bytes, unsigned) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  if (!Get().can_pin) return Return(kOutOfMemory);
  std::lock_guard lock(Get().mutex);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  for (const auto& [base, size] : Get().registered) {
    if (begin < base + size && base < begin + bytes) {
      Get().reports.push_back("cudaHostRegister: part of the memory is registered");
      return Return(kHostAlreadyRegistered);
    }
  }
  Get().registered[begin] = bytes;
  return Return(0);
}

FAKE_EXPORT int cudaHostUnregister(void* data) {
  BEGIN(kBlocks | kChangesMemory | kNotInCapture | kReleases, -1);
  std::lock_guard lock(Get().mutex);
  if (Get().registered.erase(reinterpret_cast<uintptr_t>(data)) == 0) {
    Get().reports.push_back("cudaHostUnregister: memory that is not registered");
    return Return(kHostNotRegistered);
  }
  const uintptr_t page = reinterpret_cast<uintptr_t>(data) & ~uintptr_t{4095};
  unsigned char in_core;
  if (mincore(reinterpret_cast<void*>(page), 1, &in_core) != 0) {
    Get().reports.push_back("cudaHostUnregister: the memory was freed before");
  }
  return Return(0);
}

FAKE_EXPORT int cudaHostGetDevicePointer(void** address, void* data, unsigned) {
  BEGIN(kPlain, -1);
  if (PlaceOf(data) != -1) {
    return Return(Broken("cudaHostGetDevicePointer: memory that is not pinned", kInvalidValue));
  }
  *address = data;
  return Return(0);
}

FAKE_EXPORT int cudaMemcpy(void* dst, const void* src, size_t bytes, int) {
  BEGIN(kBlocks | kNotInCapture, -1);
  auto stream = FindStream(nullptr, __func__);
  const int error = IssueCopy(dst, src, bytes, nullptr, __func__);
  stream->Drain();
  return error;
}

FAKE_EXPORT int cudaMemcpyAsync(void* dst, const void* src, size_t bytes, int, void* stream) {
  BEGIN(kPlain, -1);
  return IssueCopy(dst, src, bytes, stream, __func__);
}

FAKE_EXPORT int cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device,
                                    size_t bytes, void* stream) {
  BEGIN(kPlain, -1);
  if (PlaceOf(dst) != dst_device || PlaceOf(src) != src_device) {
    return Return(Broken("cudaMemcpyPeerAsync: memory of another device", kInvalidValue));
  }
  return IssueCopy(dst, src, bytes, stream, __func__);
}

FAKE_EXPORT int cudaMemsetAsync(void* data, int value, size_t bytes, void* handle) {
  BEGIN(kPlain, -1);
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr) return Return(kInvalidHandle);
  const std::string why = WhyNotUsable(data, bytes, stream->device, "target");
  if (!why.empty()) return Return(Broken("cudaMemsetAsync: " + why, kInvalidValue));
  Issue(stream.get(), {[=] { std::memset(data, value, bytes); }});
  return Return(0);
}

FAKE_EXPORT int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  if (flags != 1) Broken("cudaStreamCreateWithFlags: the stream waits for the default one", 0);
  return MakeStream(stream);
}

FAKE_EXPORT int cudaStreamCreate(void** stream) {
  BEGIN(kChangesMemory | kNotInCapture, -1);
  return MakeStream(stream);
}

FAKE_EXPORT int cudaStreamDestroy(void* handle) {
  BEGIN(kChangesMemory | kNotInCapture | kReleases, -1);
  auto stream = FindStream(handle, __func__);
  if (stream == nullptr || handle == nullptr) return Return(kInvalidHandle);
  if (!stream->IsIdle() && !HasFault(stream->device)) {
    Broken("cudaStreamDestroy: work of the stream is pending", 0);
  }
  stream->Drain();
  {
    std::lock_guard lock(Get().mutex);
    Get().streams.erase(handle);
  }
  return Return(0);  // and the last user of the stream ends its thread
}

FAKE_EXPORT int cudaStreamSynchronize(void* handle) {
  auto stream = FindStream(handle, __func__);
  BEGIN(kBlocks | kNotInCapture, stream == nullptr ? -1 : stream->device);
  if (stream == nullptr) return Return(kInvalidHandle);
  if (IsCaptured(stream.get(), __func__)) return Return(kCaptureUnsupported);
  stream->Drain();
  return Return(Begin("", kPlain, stream->device));
}

FAKE_EXPORT int cudaStreamQuery(void* handle) {
  auto stream = FindStream(handle, __func__);
  BEGIN(kNotInCapture, stream == nullptr ? -1 : stream->device);
  if (stream == nullptr) return Return(kInvalidHandle);
  if (IsCaptured(stream.get(), __func__)) return Return(kCaptureUnsupported);
  if (!stream->IsIdle()) return kNotReady;
  return Return(Begin("", kPlain, stream->device));
}

FAKE_EXPORT int cudaStreamWaitEvent(void* handle, void* event_handle, unsigned) {
  BEGIN(kPlain, -1);
  auto stream = FindStream(handle, __func__);
  auto event = FindEvent(event_handle, __func__);
  if (stream == nullptr || event == nullptr) return Return(kInvalidHandle);
  if (stream->capture != nullptr && !event->is_captured) {
    stream->is_capture_broken = true;
    return Return(
        Broken("cudaStreamWaitEvent: a captured stream waits for work outside", kCaptureIsolation));
  }
  const uint64_t number = LastRecord(event.get(), __func__);
  if (number != 0) Issue(stream.get(), {[=] { event->WaitFor(number); }, /*is_control=*/true});
  return Return(0);
}

FAKE_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
  BEGIN(kChangesMemory, -1);
  return MakeEvent(event, (flags & 2) == 0);
}

FAKE_EXPORT int cudaEventCreate(void** event) {
  BEGIN(kChangesMemory, -1);
  return MakeEvent(event, true);
}

FAKE_EXPORT int cudaEventDestroy(void* handle) {
  BEGIN(kChangesMemory | kReleases, -1);
  auto event = FindEvent(handle, __func__);
  if (event == nullptr) return Return(kInvalidHandle);
  std::lock_guard lock(Get().mutex);
  Get().events.erase(handle);
  return Return(0);
}

FAKE_EXPORT int cudaEventRecord(void* handle, void* stream_handle) {
  BEGIN(kPlain, -1);
  auto event = FindEvent(handle, __func__);
  auto stream = FindStream(stream_handle, __func__);
  if (event == nullptr || stream == nullptr) return Return(kInvalidHandle);
  if (event->device != stream->device) {
    return Return(Broken("cudaEventRecord: an event of another device", kInvalidHandle));
  }
  event->is_captured = stream->capture != nullptr;
  uint64_t number;
  {
    std::lock_guard lock(event->mutex);
    number = ++event->issued;
  }
  const auto reach = [=] {
    std::lock_guard lock(event->mutex);
    event->reached = number;
    event->time = std::chrono::steady_clock::now();
    event->reached_changed.notify_all();
  };
  Issue(stream.get(), {reach, /*is_control=*/true, /*is_mark=*/true});
  return Return(0);
}

FAKE_EXPORT int cudaEventQuery(void* handle) {
  auto event = FindEvent(handle, __func__);
  BEGIN(kNotInCapture, event == nullptr ? -1 : event->device);
  if (event == nullptr) return Return(kInvalidHandle);
  if (!event->IsReached(LastRecord(event.get(), __func__))) return kNotReady;
  return Return(Begin("", kPlain, event->device));
}

FAKE_EXPORT int cudaEventSynchronize(void* handle) {
  auto event = FindEvent(handle, __func__);
  BEGIN(kBlocks | kNotInCapture, event == nullptr ? -1 : event->device);
  if (event == nullptr) return Return(kInvalidHandle);
  event->WaitFor(LastRecord(event.get(), __func__));
  return Return(Begin("", kPlain, event->device));
}

FAKE_EXPORT int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
  BEGIN(kPlain, -1);
  auto first = FindEvent(start, __func__);
  auto last = FindEvent(end, __func__);
  if (first == nullptr || last == nullptr) return Return(kInvalidHandle);
  if (first->device != last->device || !first->is_timed || !last->is_timed) {
    return Return(Broken("cudaEventElapsedTime: not two timed events of a device", kInvalidHandle));
  }
  for (const auto& event : {first, last}) {
    if (!event->IsReached(LastRecord(event.get(), __func__))) {
      return Return(Broken("cudaEventElapsedTime: an event is not reached", kNotReady));
    }
  }
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return Return(0);
}
