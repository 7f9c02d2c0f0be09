#include "exec/devices/cuda/cuda_stream.h"

#include <chrono>
#include <string>
#include <thread>

#include "exec/devices/cuda/cuda_graph.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr unsigned kStreamNonBlocking = 0x01;
constexpr unsigned kEventDisableTiming = 0x02;
constexpr int kMemcpyDefault = 4;  // the driver finds the direction in the addresses

/*! \brief Polls before a thread sleeps between them: some tens of microseconds. */
constexpr int kPolls = 100;
constexpr auto kPollEvery = std::chrono::microseconds(20);

/*!
 * \brief Asks until the answer is yes.
 *
 * Unlike the driver's own waits this can be left by an exception, and a thread that shares its core
 * gives it up.
 */
template <typename IsOver>
void Poll(const IsOver& is_over) {
  for (int polls = 0; !is_over(); ++polls) {
    if (polls >= kPolls) std::this_thread::sleep_for(kPollEvery);
  }
}

class CudaEventObject : public Event {
 public:
  CudaEventObject(const CudaRuntime& cuda, int device, bool is_timed)
      : cuda_(cuda), event_(cuda, device, is_timed) {}

  bool IsReached() override { return event_.IsReached(); }
  void HostWait() override { event_.HostWait(); }

  int64_t ElapsedNs(const Event& earlier) const override {
    const auto& other = dynamic_cast<const CudaEventObject&>(earlier);
    float milliseconds = 0;
    cuda_.Check(cuda_.EventElapsedTime(&milliseconds, other.event_.get(), event_.get()),
                "cudaEventElapsedTime");
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  const CudaEventHandle& handle() const { return event_; }

 private:
  const CudaRuntime& cuda_;
  CudaEventHandle event_;
};

class CudaStreamObject : public Stream {
 public:
  CudaStreamObject(const TvmAbi* abi, int device, const LoadedFunctions* functions,
                   const LoadedLibraryKernels* library_kernels, Device* memory)
      : abi_(abi),
        cuda_(RuntimeOf(*abi)),
        device_(device),
        library_kernels_(library_kernels),
        workspace_(memory),
        stream_(cuda_, device),
        target_{abi, &cuda_, functions, stream_.get(), device} {}

  void Attach() override {
    cuda_.Check(cuda_.SetDevice(device_), "cudaSetDevice for cuda:", device_);
  }

  void Launch(const KernelCall& call) override {
    if (call.function.library_kernel != nullptr) {
      library_kernels_->Launch(call, &workspace_, stream_.get());
      return;
    }
    if (SetLaunchTarget(&target_)) {
      // Another stream of this thread was the last one. TVM's stream is that of what a kernel's
      // host part calls there (sorting, for example).
      SetDeviceWorkspacePool(&workspace_);
      if (abi_->SetStream(kDLCUDA, device_, stream_.get()) != 0) {
        throw Error(ErrorKind::kExecution, "TVMSetStream: " + abi_->LastErrorLine());
      }
    }
    if (CallKernel(*abi_, call) == 0) return;
    workspace_.Clear();  // what the kernel has left behind
    throw Error(ErrorKind::kExecution, abi_->LastErrorLine());
  }

  void Copy(const DLTensor& dst, const DLTensor& src, int64_t bytes) override {
    if (bytes == 0) return;
    const size_t size = static_cast<size_t>(bytes);
    const bool is_peer = dst.device.device_type == kDLCUDA && src.device.device_type == kDLCUDA &&
                         dst.device.device_id != src.device.device_id;
    if (is_peer) {
      cuda_.Check(cuda_.MemcpyPeerAsync(dst.data, dst.device.device_id, src.data,
                                        src.device.device_id, size, stream_.get()),
                  "cudaMemcpyPeerAsync");
    } else {
      cuda_.Check(cuda_.MemcpyAsync(dst.data, src.data, size, kMemcpyDefault, stream_.get()),
                  "cudaMemcpyAsync");
    }
  }

  std::unique_ptr<Event> MakeEvent(bool is_timed) override {
    return std::make_unique<CudaEventObject>(cuda_, device_, is_timed);
  }

  void Record(Event* event) override {
    dynamic_cast<CudaEventObject*>(event)->handle().Record(stream_.get());
  }

  // What a GPU survives is told when it is issued; any other fault stays with the device.
  void RecordEnd(Event* event) override { Record(event); }

  bool Wait(Event* event) override {
    auto* cuda_event = dynamic_cast<CudaEventObject*>(event);
    if (cuda_event == nullptr) return false;
    cuda_.Check(cuda_.StreamWaitEvent(stream_.get(), cuda_event->handle().get(), 0),
                "cudaStreamWaitEvent");
    return true;
  }

  uint64_t WordAddress(const void* word) override {
    if (!HasWords()) return 0;
    const DeviceScope scope(cuda_, device_);
    void* address = nullptr;
    const int error = cuda_.HostGetDevicePointer(&address, const_cast<void*>(word), 0);
    cuda_.Ignore(error);
    return error == 0 ? reinterpret_cast<uint64_t>(address) : 0;
  }

  void WaitWord(uint64_t word, uint32_t value) override {
    constexpr unsigned kGreaterOrEqual = 0;
    CheckWord(TheDriver().StreamWaitValue32(stream_.get(), word, value, kGreaterOrEqual),
              "cuStreamWaitValue32");
  }

  void WriteWord(uint64_t word, uint32_t value) override {
    constexpr unsigned kAfterAllWrites = 0;
    CheckWord(TheDriver().StreamWriteValue32(stream_.get(), word, value, kAfterAllWrites),
              "cuStreamWriteValue32");
  }

  std::unique_ptr<RecordedWork> Capture(const std::function<void()>& issue) override {
    auto graph = std::make_unique<CudaGraphObject>(cuda_, device_, stream_.get(), issue);
    workspace_.Fix();
    return graph;
  }

  void Replay(const RecordedWork& work) override {
    dynamic_cast<const CudaGraphObject&>(work).Launch(stream_.get());
  }

  bool IsIdle() override { return stream_.IsIdle(); }
  void Synchronise() override { stream_.Synchronise(); }

  void ReserveWorkspace(int64_t bytes) override { workspace_.Reserve(bytes); }
  int64_t workspace_bytes() const override { return workspace_.held_bytes(); }

 private:
  void CheckWord(int error, const char* function) const {
    cuda_.Check(error, function, " on cuda:", device_);
  }

  /*! \brief Whether the driver lets streams of the device use words. */
  bool HasWords() const {
    // CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: those of 32 bits have no attribute of
    // their own any more, and are there with them.
    constexpr int kCanUseWords = 122;
    const CudaDriver& driver = TheDriver();
    if (driver.StreamWaitValue32 == nullptr || driver.StreamWriteValue32 == nullptr) return false;
    int device = 0, can_use = 0;
    return driver.DeviceGet(&device, device_) == 0 &&
           driver.DeviceGetAttribute(&can_use, kCanUseWords, device) == 0 && can_use != 0;
  }

  const TvmAbi* abi_;
  const CudaRuntime& cuda_;
  int device_;
  const LoadedLibraryKernels* library_kernels_;
  /*! \brief Scratch memory of the kernels, in the order in which they are issued. */
  WorkspacePool workspace_;
  CudaStreamHandle stream_;  // after the pool, whose memory its work uses
  LaunchTarget target_;
};

}  // namespace

CudaStreamHandle::CudaStreamHandle(const CudaRuntime& cuda, int device)
    : cuda_(cuda), device_(device) {
  const DeviceScope scope(cuda_, device_);
  scope.Check();
  cuda_.Check(cuda_.StreamCreateWithFlags(&stream_, kStreamNonBlocking),
              "cudaStreamCreateWithFlags on cuda:", device_);
}

CudaStreamHandle::~CudaStreamHandle() {
  const DeviceScope scope(cuda_, device_);
  cuda_.Ignore(cuda_.StreamDestroy(stream_));
}

bool CudaStreamHandle::IsIdle() const {
  const int status = cuda_.StreamQuery(stream_);
  if (status == kCudaNotReady) return false;
  cuda_.Check(status, "the work of a stream of cuda:", device_);
  return true;
}

void CudaStreamHandle::Synchronise() const {
  Poll([this] { return IsIdle(); });
}

CudaEventHandle::CudaEventHandle(const CudaRuntime& cuda, int device, bool is_timed)
    : cuda_(cuda), device_(device) {
  const DeviceScope scope(cuda_, device_);
  scope.Check();
  cuda_.Check(cuda_.EventCreateWithFlags(&event_, is_timed ? 0 : kEventDisableTiming),
              "cudaEventCreateWithFlags on cuda:", device_);
}

CudaEventHandle::~CudaEventHandle() {
  const DeviceScope scope(cuda_, device_);
  cuda_.Ignore(cuda_.EventDestroy(event_));
}

void CudaEventHandle::Record(CudaStream stream) const {
  cuda_.Check(cuda_.EventRecord(event_, stream), "cudaEventRecord on cuda:", device_);
}

bool CudaEventHandle::IsReached() const {
  const int status = cuda_.EventQuery(event_);
  if (status == kCudaNotReady) return false;
  cuda_.Check(status, "the work of cuda:", device_, " before an event");
  return true;
}

void CudaEventHandle::HostWait() const {
  Poll([this] { return IsReached(); });
}

std::unique_ptr<Stream> MakeCudaStream(const TvmAbi* abi, int device,
                                       const LoadedFunctions* functions,
                                       const LoadedLibraryKernels* library_kernels,
                                       Device* memory) {
  return std::make_unique<CudaStreamObject>(abi, device, functions, library_kernels, memory);
}

}  // namespace heteroplace::exec
