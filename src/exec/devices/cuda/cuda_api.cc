#include "exec/devices/cuda/cuda_api.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <type_traits>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

template <typename Function>
void Take(void* library, const char* name, const std::string& mend, Function* out) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) throw Error(ErrorKind::kExecution, mend + " (" + name + " is missing)");
  *out = reinterpret_cast<Function>(symbol);
}

CudaRuntime LoadRuntime(void* library) {
  CudaRuntime cuda{};
  const auto find = [library](const char* name, auto* out) {
    Take(library, name, "the loaded TVM has no CUDA runtime; use a TVM built with CUDA", out);
  };
  find("cudaGetDeviceCount", &cuda.GetDeviceCount);
  find("cudaSetDevice", &cuda.SetDevice);
  find("cudaDeviceGetAttribute", &cuda.DeviceGetAttribute);
  find("cudaGetLastError", &cuda.GetLastError);
  find("cudaGetErrorString", &cuda.GetErrorString);
  find("cudaDeviceCanAccessPeer", &cuda.DeviceCanAccessPeer);
  find("cudaDeviceEnablePeerAccess", &cuda.DeviceEnablePeerAccess);
  find("cudaMalloc", &cuda.Malloc);
  find("cudaFree", &cuda.Free);
  find("cudaHostAlloc", &cuda.HostAlloc);
  find("cudaFreeHost", &cuda.FreeHost);
  find("cudaHostRegister", &cuda.HostRegister);
  find("cudaHostUnregister", &cuda.HostUnregister);
  find("cudaHostGetDevicePointer", &cuda.HostGetDevicePointer);
  find("cudaStreamCreateWithFlags", &cuda.StreamCreateWithFlags);
  find("cudaStreamDestroy", &cuda.StreamDestroy);
  find("cudaStreamQuery", &cuda.StreamQuery);
  find("cudaStreamWaitEvent", &cuda.StreamWaitEvent);
  find("cudaEventCreateWithFlags", &cuda.EventCreateWithFlags);
  find("cudaEventDestroy", &cuda.EventDestroy);
  find("cudaEventRecord", &cuda.EventRecord);
  find("cudaEventQuery", &cuda.EventQuery);
  find("cudaEventElapsedTime", &cuda.EventElapsedTime);
  find("cudaMemcpyAsync", &cuda.MemcpyAsync);
  find("cudaMemcpyPeerAsync", &cuda.MemcpyPeerAsync);
  find("cudaStreamBeginCapture", &cuda.StreamBeginCapture);
  find("cudaStreamEndCapture", &cuda.StreamEndCapture);
  // Without flags it has other parameters in CUDA 11.
  find("cudaGraphInstantiateWithFlags", &cuda.GraphInstantiateWithFlags);
  find("cudaGraphUpload", &cuda.GraphUpload);
  find("cudaGraphLaunch", &cuda.GraphLaunch);
  find("cudaGraphDestroy", &cuda.GraphDestroy);
  find("cudaGraphExecDestroy", &cuda.GraphExecDestroy);
  return cuda;
}

CudaDriver LoadDriver() {
  // Never closed: the runtime has it open too.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(ErrorKind::kExecution, std::string("this machine has no NVIDIA driver (") +
                                           dlerror() +
                                           "); install it, or plan for the devices it has");
  }
  CudaDriver driver{};
  const auto find = [library](const char* name, auto* out) {
    Take(library, name, "the NVIDIA driver is too old; update it", out);
  };
  find("cuInit", &driver.Init);
  find("cuCtxGetCurrent", &driver.CtxGetCurrent);
  find("cuCtxSetCurrent", &driver.CtxSetCurrent);
  find("cuDevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain);
  find("cuModuleLoadData", &driver.ModuleLoadData);
  find("cuModuleUnload", &driver.ModuleUnload);
  find("cuModuleGetFunction", &driver.ModuleGetFunction);
  find("cuFuncGetAttribute", &driver.FuncGetAttribute);
  find("cuFuncSetAttribute", &driver.FuncSetAttribute);
  find("cuLaunchKernel", &driver.LaunchKernel);
  find("cuDeviceGet", &driver.DeviceGet);
  find("cuDeviceGetAttribute", &driver.DeviceGetAttribute);
  const auto find_new = [library](const char* name, auto* out) {
    *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(dlsym(library, name));
  };
  find_new("cuFuncLoad", &driver.FuncLoad);
  // Those without a version need a parameter of the driver's kernel module.
  find_new("cuStreamWaitValue32_v2", &driver.StreamWaitValue32);
  find_new("cuStreamWriteValue32_v2", &driver.StreamWriteValue32);
  return driver;
}

/*!
 * \brief The context of a device that the runtime works in; made where there is none yet.
 *
 * Held until the process ends, as the runtime holds its own.
 */
int FindContext(int device, CudaContext* context) {
  constexpr int kInvalidDevice = 101;
  static std::array<std::atomic<CudaContext>, 64> held{};
  const auto d = static_cast<size_t>(device);
  if (d >= held.size()) return kInvalidDevice;
  *context = held[d].load();
  if (*context != nullptr) return 0;
  const CudaDriver& driver = TheDriver();
  int number = 0;
  int error = driver.Init(0);
  if (error == 0) error = driver.DeviceGet(&number, device);
  if (error == 0) error = driver.DevicePrimaryCtxRetain(context, number);
  if (error == 0) held[d].store(*context);
  return error;
}

}  // namespace

std::string CudaRuntime::Describe(int error) const {
  return std::string(GetErrorString(error)) + " (CUDA error " + std::to_string(error) + ")";
}

void CudaRuntime::Ignore(int error) const {
  if (error != 0) GetLastError();
}

int CudaRuntime::GetCapability(int device, int* capability) const {
  // Of cudaDeviceAttr.
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  int major = 0, minor = 0;
  int error = DeviceGetAttribute(&major, kMajor, device);
  if (error == 0) error = DeviceGetAttribute(&minor, kMinor, device);
  *capability = 10 * major + minor;
  return error;
}

const CudaRuntime& RuntimeOf(const TvmAbi& abi) {
  if (!abi.IsTvm()) {
    throw Error(
        ErrorKind::kExecution,
        "a program for GPUs needs TVM's library, whose CUDA runtime it uses; give its path");
  }
  static const CudaRuntime cuda = LoadRuntime(abi.library);
  return cuda;
}

std::optional<int32_t> FindCapability(int32_t index) try {
  // Of CUdevice_attribute.
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  const CudaDriver& driver = TheDriver();
  int device = 0, major = 0, minor = 0;
  int error = driver.Init(0);
  if (error == 0) error = driver.DeviceGet(&device, index);
  if (error == 0) error = driver.DeviceGetAttribute(&major, kMajor, device);
  if (error == 0) error = driver.DeviceGetAttribute(&minor, kMinor, device);
  return error == 0 ? std::optional<int32_t>(10 * major + minor) : std::nullopt;
} catch (const Error&) {  // there is no driver
  return std::nullopt;
}

const CudaDriver& TheDriver() {
  static const CudaDriver driver = LoadDriver();
  return driver;
}

DeviceScope::DeviceScope(const CudaRuntime& cuda, int device) : cuda_(cuda), device_(device) {
  constexpr int kNoDevice = 100;
  try {
    const CudaDriver& driver = TheDriver();
    CudaContext context = nullptr;
    error_ = FindContext(device_, &context);
    if (error_ == 0) {
      // What is given back is so under its context: also if the one before is not known, or a call
      // fails once.
      const int unknown = driver.CtxGetCurrent(&before_);
      if (unknown == 0) driver_ = &driver;
      const int unset = driver.CtxSetCurrent(context);
      if (unset != 0) driver.CtxSetCurrent(context);
      error_ = unknown == 0 ? unset : unknown;
    }
  } catch (const Error&) {  // there is no driver, of which no destructor may tell
    error_ = kNoDevice;
  }
}

DeviceScope::~DeviceScope() {
  if (driver_ != nullptr) driver_->CtxSetCurrent(before_);
}

void DeviceScope::Check() const {
  cuda_.Check(error_, "the context of cuda:", device_, " cannot be made current");
}

}  // namespace heteroplace::exec
