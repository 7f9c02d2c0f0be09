// CUDA devices: memory, code and peers. Nothing of TVM's: its functions end the process where a
// device has had a fault, and change the current device of whoever calls them.
#include <optional>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/cuda/cuda_launch.h"
#include "exec/devices/cuda/cuda_library_kernels.h"
#include "exec/devices/cuda/cuda_staging.h"
#include "exec/devices/cuda/cuda_stream.h"
#include "exec/devices/device.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr unsigned kHostRegisterPortable = 0x01;
constexpr unsigned kHostRegisterMapped = 0x02;

class CudaDevice : public Device {
 public:
  CudaDevice(const TvmAbi* abi, int device)
      : abi_(abi), cuda_(RuntimeOf(*abi)), device_(device), copies_(cuda_, device) {
    int count = 0;
    const int error = cuda_.GetDeviceCount(&count);
    const std::string need = "the program needs " + Name() + "; ";
    if (error != 0) {
      cuda_.Ignore(error);
      throw Error(ErrorKind::kExecution, need + "this machine has no NVIDIA driver or GPU (" +
                                             cuda_.Describe(error) +
                                             "); plan for the devices it has");
    }
    if (device_ >= count) {
      throw Error(ErrorKind::kExecution, need + "this machine has " + std::to_string(count) +
                                             " CUDA devices; plan for the devices it has");
    }
    TheDriver();
  }

  void* Allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    const DeviceScope scope(cuda_, device_);
    scope.Check();
    void* data = nullptr;
    cuda_.Check(cuda_.Malloc(&data, static_cast<size_t>(bytes)), "cannot allocate ", bytes,
                " bytes on cuda:", device_);
    return data;
  }

  void Free(void* data, int64_t) override {
    if (data == nullptr) return;
    const DeviceScope scope(cuda_, device_);
    cuda_.Ignore(cuda_.Free(data));
  }

  void Upload(void* dst, const void* src, int64_t bytes) override {
    copies_.UploadAll({{dst, src, bytes}});
  }
  void UploadAll(const std::vector<HostBytes>& all) override { copies_.UploadAll(all); }
  void Download(void* dst, const void* src, int64_t bytes) override {
    copies_.Download(dst, src, bytes);
  }
  void CopyWithin(const std::vector<MovedBytes>& all) override { copies_.CopyWithin(all); }

  void LoadKernels(const DeviceFunctionTable* table,
                   const std::vector<std::string>& symbols) override {
    if (table != nullptr) functions_.emplace(cuda_, device_, table, symbols);
  }

  void LoadLibraryKernels(const std::vector<const LibraryKernel*>& kernels) override {
    library_kernels_.emplace(cuda_, device_, kernels);
  }

  void EnablePeer(int32_t peer) override {
    const DeviceScope scope(cuda_, device_);
    scope.Check();
    const std::string pair = Name() + " and cuda:" + std::to_string(peer);
    int can_access = 0;
    cuda_.Check(cuda_.DeviceCanAccessPeer(&can_access, device_, peer),
                "cudaDeviceCanAccessPeer for ", pair);
    if (can_access == 0) return;  // the driver takes the copies through host memory
    const int error = cuda_.DeviceEnablePeerAccess(peer, 0);
    // A GPU takes so many peers and no more: then it is as without access.
    if (error == kCudaPeerAccessAlreadyEnabled || error == kCudaTooManyPeers) {
      cuda_.Ignore(error);
    } else {
      cuda_.Check(error, "cudaDeviceEnablePeerAccess for ", pair);
    }
  }

  std::unique_ptr<Stream> MakeStream() override {
    return MakeCudaStream(abi_, device_, functions_ ? &*functions_ : nullptr,
                          library_kernels_ ? &*library_kernels_ : nullptr, this);
  }

 private:
  std::string Name() const { return DeviceName({kDLCUDA, device_}); }

  const TvmAbi* abi_;
  const CudaRuntime& cuda_;
  int device_;
  StagedCopies copies_;
  std::optional<LoadedFunctions> functions_;
  std::optional<LoadedLibraryKernels> library_kernels_;
};

}  // namespace

std::unique_ptr<Device> MakeCudaDevice(const TvmAbi* abi, int32_t index) {
  return std::make_unique<CudaDevice>(abi, index);
}

PinnedMemory::PinnedMemory(const TvmAbi* abi, int32_t device, void* data, int64_t bytes)
    : abi_(abi), device_(device), data_(data) {
  const CudaRuntime& cuda = RuntimeOf(*abi_);
  const DeviceScope scope(cuda, device_);
  scope.Check();
  const int error = cuda.HostRegister(data_, static_cast<size_t>(bytes),
                                      kHostRegisterPortable | kHostRegisterMapped);
  cuda.Ignore(error);
  is_pinned_ = error == 0;
}

PinnedMemory::~PinnedMemory() {
  if (!is_pinned_) return;
  const CudaRuntime& cuda = RuntimeOf(*abi_);
  const DeviceScope scope(cuda, device_);
  cuda.Ignore(cuda.HostUnregister(data_));
}

}  // namespace heteroplace::exec
