// CUDA devices: memory, kernels and streams by TVM's C ABI, events and copies by the CUDA runtime.
//
// The runtime's functions are looked up through libtvm, whose dependency it is: it is then surely
// the same libcudart that TVM's streams belong to, and heteroplace itself does not link CUDA.
#include <dlfcn.h>

#include <cstdint>

#include "exec/devices/device.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

using CudaEvent = void*;
using CudaStream = void*;

constexpr unsigned kEventDisableTiming = 0x02;
constexpr unsigned kHostRegisterPortable = 0x01;
constexpr int kMemcpyDefault = 4;  // the driver finds the direction in the addresses
constexpr int kErrorNotReady = 600;
constexpr int kErrorPeerAccessAlreadyEnabled = 704;

/*! \brief The functions of libcudart that are used; each returns 0 for success. */
struct CudaRuntime {
  int (*GetDeviceCount)(int* count);
  int (*SetDevice)(int device);
  int (*GetLastError)();
  const char* (*GetErrorString)(int error);
  int (*DeviceCanAccessPeer)(int* can, int device, int peer);
  int (*DeviceEnablePeerAccess)(int peer, unsigned flags);
  int (*EventCreateWithFlags)(CudaEvent* event, unsigned flags);
  int (*EventDestroy)(CudaEvent event);
  int (*EventRecord)(CudaEvent event, CudaStream stream);
  int (*EventQuery)(CudaEvent event);
  int (*EventSynchronize)(CudaEvent event);
  int (*EventElapsedTime)(float* milliseconds, CudaEvent start, CudaEvent end);
  int (*StreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned flags);
  int (*StreamSynchronize)(CudaStream stream);
  int (*MemcpyAsync)(void* dst, const void* src, size_t bytes, int kind, CudaStream stream);
  int (*MemcpyPeerAsync)(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                         CudaStream stream);
  int (*Memcpy)(void* dst, const void* src, size_t bytes, int kind);
  int (*HostRegister)(void* data, size_t bytes, unsigned flags);
  int (*HostUnregister)(void* data);

  /*! \brief Throws with the runtime's message, and clears it, unless `error` is 0. */
  void Check(int error, const char* what) const {
    if (error == 0) return;
    GetLastError();
    throw Error(ErrorKind::kExecution, std::string(what) + ": " + GetErrorString(error));
  }
};

template <typename Function>
void Find(void* library, const char* name, Function* out) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(ErrorKind::kExecution, std::string("the loaded TVM has no CUDA runtime (") + name +
                                           " is missing); use a TVM built with CUDA");
  }
  *out = reinterpret_cast<Function>(symbol);
}

CudaRuntime LoadCudaRuntime(void* library) {
  CudaRuntime cuda{};
  Find(library, "cudaGetDeviceCount", &cuda.GetDeviceCount);
  Find(library, "cudaSetDevice", &cuda.SetDevice);
  Find(library, "cudaGetLastError", &cuda.GetLastError);
  Find(library, "cudaGetErrorString", &cuda.GetErrorString);
  Find(library, "cudaDeviceCanAccessPeer", &cuda.DeviceCanAccessPeer);
  Find(library, "cudaDeviceEnablePeerAccess", &cuda.DeviceEnablePeerAccess);
  Find(library, "cudaEventCreateWithFlags", &cuda.EventCreateWithFlags);
  Find(library, "cudaEventDestroy", &cuda.EventDestroy);
  Find(library, "cudaEventRecord", &cuda.EventRecord);
  Find(library, "cudaEventQuery", &cuda.EventQuery);
  Find(library, "cudaEventSynchronize", &cuda.EventSynchronize);
  Find(library, "cudaEventElapsedTime", &cuda.EventElapsedTime);
  Find(library, "cudaStreamWaitEvent", &cuda.StreamWaitEvent);
  Find(library, "cudaStreamSynchronize", &cuda.StreamSynchronize);
  Find(library, "cudaMemcpyAsync", &cuda.MemcpyAsync);
  Find(library, "cudaMemcpyPeerAsync", &cuda.MemcpyPeerAsync);
  Find(library, "cudaMemcpy", &cuda.Memcpy);
  Find(library, "cudaHostRegister", &cuda.HostRegister);
  Find(library, "cudaHostUnregister", &cuda.HostUnregister);
  return cuda;
}

/*! \brief The functions for this TVM; a process has one libtvm, so they are looked up once. */
const CudaRuntime& Cuda(const TvmAbi& abi) {
  static const CudaRuntime cuda = LoadCudaRuntime(abi.library);
  return cuda;
}

class CudaEventObject : public Event {
 public:
  CudaEventObject(const CudaRuntime& cuda, int device, bool is_timed) : cuda_(cuda) {
    cuda_.Check(cuda_.SetDevice(device), "cudaSetDevice");
    cuda_.Check(cuda_.EventCreateWithFlags(&event_, is_timed ? 0 : kEventDisableTiming),
                "cudaEventCreateWithFlags");
  }
  ~CudaEventObject() override { cuda_.EventDestroy(event_); }
  CudaEventObject(const CudaEventObject&) = delete;
  CudaEventObject& operator=(const CudaEventObject&) = delete;

  bool IsReached() override {
    const int error = cuda_.EventQuery(event_);
    if (error == kErrorNotReady) {
      cuda_.GetLastError();  // else the next unrelated check would report it
      return false;
    }
    cuda_.Check(error, "cudaEventQuery");
    return true;
  }

  void HostWait() override { cuda_.Check(cuda_.EventSynchronize(event_), "cudaEventSynchronize"); }

  int64_t ElapsedNs(const Event& earlier) const override {
    const auto& other = dynamic_cast<const CudaEventObject&>(earlier);
    float milliseconds = 0;
    cuda_.Check(cuda_.EventElapsedTime(&milliseconds, other.event_, event_),
                "cudaEventElapsedTime");
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  CudaEvent handle() const { return event_; }

 private:
  const CudaRuntime& cuda_;
  CudaEvent event_ = nullptr;
};

class CudaStreamObject : public Stream {
 public:
  CudaStreamObject(const TvmAbi* abi, const CudaRuntime& cuda, int device)
      : abi_(abi), cuda_(cuda), device_(device) {
    if (abi_->StreamCreate(kDLCUDA, device_, &stream_) != 0) {
      throw Error(ErrorKind::kExecution, "TVMStreamCreate: " + abi_->LastErrorLine());
    }
  }
  ~CudaStreamObject() override { abi_->StreamFree(kDLCUDA, device_, stream_); }
  CudaStreamObject(const CudaStreamObject&) = delete;
  CudaStreamObject& operator=(const CudaStreamObject&) = delete;

  void Attach() override {
    // Both are properties of the calling thread: the current device, and TVM's stream for kernels.
    cuda_.Check(cuda_.SetDevice(device_), "cudaSetDevice");
    if (abi_->SetStream(kDLCUDA, device_, stream_) != 0) {
      throw Error(ErrorKind::kExecution, "TVMSetStream: " + abi_->LastErrorLine());
    }
  }

  void Launch(const KernelCall& call) override {
    if (CallKernel(*abi_, call) != 0) throw Error(ErrorKind::kExecution, abi_->LastErrorLine());
  }

  void Copy(const DLTensor& dst, const DLTensor& src, int64_t bytes) override {
    if (bytes == 0) return;
    const size_t size = static_cast<size_t>(bytes);
    const bool is_peer = dst.device.device_type == kDLCUDA && src.device.device_type == kDLCUDA &&
                         dst.device.device_id != src.device.device_id;
    if (is_peer) {
      cuda_.Check(cuda_.MemcpyPeerAsync(dst.data, dst.device.device_id, src.data,
                                        src.device.device_id, size, stream_),
                  "cudaMemcpyPeerAsync");
    } else {
      cuda_.Check(cuda_.MemcpyAsync(dst.data, src.data, size, kMemcpyDefault, stream_),
                  "cudaMemcpyAsync");
    }
  }

  std::unique_ptr<Event> MakeEvent(bool is_timed) override {
    return std::make_unique<CudaEventObject>(cuda_, device_, is_timed);
  }

  void Record(Event* event) override {
    auto* cuda_event = dynamic_cast<CudaEventObject*>(event);
    cuda_.Check(cuda_.EventRecord(cuda_event->handle(), stream_), "cudaEventRecord");
  }

  // What a GPU survives is told when it is issued; any other fault stays with the device.
  void RecordEnd(Event* event) override { Record(event); }

  bool Wait(Event* event) override {
    auto* cuda_event = dynamic_cast<CudaEventObject*>(event);
    if (cuda_event == nullptr) return false;
    cuda_.Check(cuda_.StreamWaitEvent(stream_, cuda_event->handle(), 0), "cudaStreamWaitEvent");
    return true;
  }

  void Synchronise() override {
    cuda_.Check(cuda_.StreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  const TvmAbi* abi_;
  const CudaRuntime& cuda_;
  int device_;
  TVMStreamHandle stream_ = nullptr;
};

class CudaDevice : public Device {
 public:
  CudaDevice(const TvmAbi* abi, int device) : abi_(abi), cuda_(Cuda(*abi)), device_(device) {
    int count = 0;
    const int error = cuda_.GetDeviceCount(&count);
    const std::string need = "the program needs cuda:" + std::to_string(device_) + "; ";
    if (error != 0) {
      cuda_.GetLastError();
      throw Error(ErrorKind::kExecution, need + "this machine has no NVIDIA driver or GPU (" +
                                             cuda_.GetErrorString(error) +
                                             "); plan for the devices it has");
    }
    if (device_ >= count) {
      throw Error(ErrorKind::kExecution, need + "this machine has " + std::to_string(count) +
                                             " CUDA devices; plan for the devices it has");
    }
    EnablePeers(count);
  }

  void* Allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    const DLDataType byte_type{kDLUInt, 8, 1};
    if (abi_->DeviceAllocDataSpace({kDLCUDA, device_}, static_cast<size_t>(bytes),
                                   kAllocationAlignment, byte_type, &data) != 0) {
      throw Error(ErrorKind::kExecution, "cannot allocate " + std::to_string(bytes) +
                                             " bytes on cuda:" + std::to_string(device_) + ": " +
                                             abi_->LastErrorLine());
    }
    return data;
  }

  void Free(void* data, int64_t) override {
    if (data != nullptr) abi_->DeviceFreeDataSpace({kDLCUDA, device_}, data);
  }

  void Upload(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }
  void Download(void* dst, const void* src, int64_t bytes) override { Copy(dst, src, bytes); }

  std::unique_ptr<Stream> MakeStream() override {
    return std::make_unique<CudaStreamObject>(abi_, cuda_, device_);
  }

 private:
  /*! \brief Lets copies between GPUs go directly; without it the driver stages them in host memory.
   */
  void EnablePeers(int count) {
    cuda_.Check(cuda_.SetDevice(device_), "cudaSetDevice");
    for (int peer = 0; peer < count; ++peer) {
      int can_access = 0;
      if (peer == device_) continue;
      cuda_.Check(cuda_.DeviceCanAccessPeer(&can_access, device_, peer), "cudaDeviceCanAccessPeer");
      if (can_access == 0) continue;
      const int error = cuda_.DeviceEnablePeerAccess(peer, 0);
      if (error == kErrorPeerAccessAlreadyEnabled) {
        cuda_.GetLastError();  // else the next unrelated check would report it
      } else {
        cuda_.Check(error, "cudaDeviceEnablePeerAccess");
      }
    }
  }

  void Copy(void* dst, const void* src, int64_t bytes) {
    if (bytes == 0) return;
    cuda_.Check(cuda_.SetDevice(device_), "cudaSetDevice");
    cuda_.Check(cuda_.Memcpy(dst, src, static_cast<size_t>(bytes), kMemcpyDefault), "cudaMemcpy");
    // A copy from pageable memory may return before its last part has landed, and the streams of
    // the workers do not wait for the default stream.
    cuda_.Check(cuda_.StreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  static constexpr size_t kAllocationAlignment = 256;

  const TvmAbi* abi_;
  const CudaRuntime& cuda_;
  int device_;
};

}  // namespace

std::unique_ptr<Device> MakeCudaDevice(const TvmAbi* abi, int32_t index) {
  return std::make_unique<CudaDevice>(abi, index);
}

PinnedMemory::PinnedMemory(const TvmAbi* abi, void* data, int64_t bytes) : abi_(abi), data_(data) {
  const CudaRuntime& cuda = Cuda(*abi_);
  cuda.Check(cuda.HostRegister(data_, static_cast<size_t>(bytes), kHostRegisterPortable),
             "cudaHostRegister");
}

PinnedMemory::~PinnedMemory() { Cuda(*abi_).HostUnregister(data_); }

}  // namespace heteroplace::exec
