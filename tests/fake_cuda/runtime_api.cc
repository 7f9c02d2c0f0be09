// The functions of libcudart: devices, memory, copies. See runtime_streams.cc for the others.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "runtime.h"

using namespace fake;

namespace {

/*! \brief Why memory that devices know cannot be copied; empty if it can, or is pageable. */
std::string WhyNoCopy(const void* dst, const void* src, size_t bytes) {
  std::string why = PlaceOf(dst) == -2 ? "" : WhyNotUsable(dst, bytes, -1, "target");
  if (why.empty() && PlaceOf(src) != -2) why = WhyNotUsable(src, bytes, -1, "source");
  return why;
}

int IssueCopy(void* dst, const void* src, size_t bytes, void* handle, const char* function) {
  auto stream = FindStream(handle, function);
  if (stream == nullptr) return Return(kInvalidHandle);
  const bool is_pageable = PlaceOf(dst) == -2 || PlaceOf(src) == -2;
  const std::string name = function;
  const std::string why = WhyNoCopy(dst, src, bytes);
  if (!why.empty()) return Return(Broken(name + ": " + why, kInvalidValue));
  // CUDA stages what comes from pageable memory, and may read it before the stream's turn.
  const auto staged = std::make_shared<std::vector<char>>();
  if (PlaceOf(src) == -2) {
    const char* first = static_cast<const char*>(src);
    staged->assign(first, first + bytes);
  }
  const auto copy = [=] {
    // The memory may have been given back since; pageable memory is waited for below.
    const std::string why_not = WhyNoCopy(dst, src, bytes);
    if (why_not.empty()) {
      std::memcpy(dst, staged->empty() ? src : staged->data(), bytes);
    } else {
      Broken(name + ": " + why_not, 0);
    }
  };
  Issue(stream.get(), {copy});
  if (is_pageable) {
    // CUDA may hold the caller: in a run only if not all could be pinned.
    bool is_worker;
    {
      std::lock_guard lock(Get().mutex);
      const bool can_pin = Get().can_pin && Get().max_registered_bytes == kAnyNumber;
      is_worker = Get().is_running && can_pin && std::this_thread::get_id() != Get().caller;
    }
    if (is_worker) Broken(name + ": pageable memory during a run", 0);
    stream->Drain();
  }
  return Return(0);
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
    case 201:
      return "invalid device context";
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
    case 711:
      return "peer mapping resources exhausted";
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

int& fake::LastError() {
  thread_local int error = 0;
  return error;
}

FAKE_EXPORT int cudaGetLastError() { return std::exchange(LastError(), 0); }

FAKE_EXPORT int cudaPeekAtLastError() { return LastError(); }

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
  const auto& all = Get().peers[CurrentDevice()];
  if (std::count(std::begin(all), std::end(all), true) >= Get().max_peers) {
    return Return(kTooManyPeers);
  }
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
  if (static_cast<int64_t>(bytes) > Get().max_registered_bytes) return Return(kOutOfMemory);
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
