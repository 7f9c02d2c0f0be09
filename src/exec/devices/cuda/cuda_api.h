// The functions of CUDA that the executor calls, found at run time: no build needs CUDA.
//
// Those of the runtime are looked up through libtvm, whose dependency it is: it is then surely the
// same libcudart that TVM's functions use. Those of the driver come from libcuda.so.1. Every
// function returns 0 for success.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "exec/devices/tvm_abi.h"
#include "support/error.h"

namespace heteroplace::exec {

using CudaEvent = void*;
using CudaStream = void*;
using CudaModule = void*;
using CudaFunction = void*;
using CudaContext = void*;
using CudaGraph = void*;
using CudaGraphExec = void*;

inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaPeerAccessAlreadyEnabled = 704;
inline constexpr int kCudaTooManyPeers = 711;

/*! \brief Of libcudart. */
struct CudaRuntime {
  int (*GetDeviceCount)(int* count);
  int (*SetDevice)(int device);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  int (*GetLastError)();
  const char* (*GetErrorString)(int error);
  int (*DeviceCanAccessPeer)(int* can, int device, int peer);
  int (*DeviceEnablePeerAccess)(int peer, unsigned flags);
  int (*Malloc)(void** data, size_t bytes);
  int (*Free)(void* data);
  int (*HostAlloc)(void** data, size_t bytes, unsigned flags);
  int (*FreeHost)(void* data);
  int (*HostRegister)(void* data, size_t bytes, unsigned flags);
  int (*HostUnregister)(void* data);
  int (*HostGetDevicePointer)(void** address, void* data, unsigned flags);
  int (*StreamCreateWithFlags)(CudaStream* stream, unsigned flags);
  int (*StreamDestroy)(CudaStream stream);
  int (*StreamQuery)(CudaStream stream);
  int (*StreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned flags);
  int (*EventCreateWithFlags)(CudaEvent* event, unsigned flags);
  int (*EventDestroy)(CudaEvent event);
  int (*EventRecord)(CudaEvent event, CudaStream stream);
  int (*EventQuery)(CudaEvent event);
  int (*EventElapsedTime)(float* milliseconds, CudaEvent start, CudaEvent end);
  int (*MemcpyAsync)(void* dst, const void* src, size_t bytes, int kind, CudaStream stream);
  int (*MemcpyPeerAsync)(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                         CudaStream stream);
  int (*StreamBeginCapture)(CudaStream stream, int mode);
  int (*StreamEndCapture)(CudaStream stream, CudaGraph* graph);
  int (*GraphInstantiateWithFlags)(CudaGraphExec* executable, CudaGraph graph,
                                   unsigned long long flags);
  int (*GraphUpload)(CudaGraphExec executable, CudaStream stream);
  int (*GraphLaunch)(CudaGraphExec executable, CudaStream stream);
  int (*GraphDestroy)(CudaGraph graph);
  int (*GraphExecDestroy)(CudaGraphExec executable);

  /*! \brief "an illegal memory access was encountered (CUDA error 700)". */
  std::string Describe(int error) const;

  /*!
   * \brief Throws with the runtime's message, and clears it, unless `error` is 0.
   * \param what parts of a text (strings, ints), put together only then: what works, and what is
   * polled, takes no memory, and memory that is short fails no call that the device has done.
   */
  template <typename... Parts>
  void Check(int error, const Parts&... what) const {
    if (error == 0) return;
    GetLastError();  // else the next unrelated check of whoever shares the runtime would report it
    throw Error(ErrorKind::kExecution, (TextOf(what) + ...) + ": " + Describe(error));
  }

  static std::string TextOf(const std::string& text) { return text; }
  static std::string TextOf(int64_t number) { return std::to_string(number); }

  /*! \brief Compute capability of a GPU, 10 times major + minor. Returns 0, or the runtime's error.
   */
  int GetCapability(int device, int* capability) const;

  /*! \brief Forgets the error of a call that gives something back: its caller cannot mend it. */
  void Ignore(int error) const;
};

/*! \brief Of libcuda. */
struct CudaDriver {
  int (*Init)(unsigned flags);
  int (*CtxGetCurrent)(CudaContext* context);
  int (*CtxSetCurrent)(CudaContext context);
  int (*DevicePrimaryCtxRetain)(CudaContext* context, int device);
  int (*ModuleLoadData)(CudaModule* module, const void* image);
  int (*ModuleUnload)(CudaModule module);
  int (*ModuleGetFunction)(CudaFunction* function, CudaModule module, const char* name);
  int (*FuncGetAttribute)(int* value, int attribute, CudaFunction function);
  int (*FuncSetAttribute)(CudaFunction function, int attribute, int value);
  /*! \brief Null in drivers before CUDA 12.4. */
  int (*FuncLoad)(CudaFunction function);
  int (*LaunchKernel)(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      CudaStream stream, void** arguments, void** extra);
  int (*DeviceGet)(int* device, int ordinal);
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  /*! \brief Words that streams wait for and write; null in drivers before CUDA 11.7. */
  int (*StreamWaitValue32)(CudaStream stream, uint64_t address, uint32_t value, unsigned flags);
  int (*StreamWriteValue32)(CudaStream stream, uint64_t address, uint32_t value, unsigned flags);
};

/*!
 * \brief The runtime of this TVM; a process has one libtvm, so it is looked up once.
 * \throws Error kExecution when there is no TVM, or it has no CUDA.
 */
const CudaRuntime& RuntimeOf(const TvmAbi& abi);

/*! \brief Compute capability of a GPU by the driver, 10 times major + minor; none where there is no
 * such GPU, or no driver. */
std::optional<int32_t> FindCapability(int32_t index);

/*! \brief The driver. \throws Error kExecution when there is none, or it is too old. */
const CudaDriver& TheDriver();

/*!
 * \brief Makes a device the current one of the calling thread, and then the former again.
 *
 * By the driver, whose current context is what the runtime works on: the runtime knows devices, not
 * contexts, and to give one back would make a context on it where its user has made none.
 *
 * Never throws, so that it serves destructors too; whoever asks for something calls Check.
 */
class DeviceScope {
 public:
  DeviceScope(const CudaRuntime& cuda, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  /*! \brief Throws Error kExecution if the device could not be made current. */
  void Check() const;

 private:
  const CudaRuntime& cuda_;
  int device_;
  /*! \brief The caller's context; null: it had none. */
  CudaContext before_ = nullptr;
  /*! \brief Set where the caller's context is known. */
  const CudaDriver* driver_ = nullptr;
  int error_ = 0;
};

}  // namespace heteroplace::exec
