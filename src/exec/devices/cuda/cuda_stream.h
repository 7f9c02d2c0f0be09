// Streams and events of CUDA, and waiting for them.
#pragma once

#include <memory>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/cuda/cuda_launch.h"
#include "exec/devices/cuda/cuda_library_kernels.h"
#include "exec/devices/device.h"
#include "exec/devices/workspace.h"

namespace heteroplace::exec {

/*!
 * \brief Makes a stream of a device, which must outlive it.
 * \param functions loaded on the device, or null; must outlive the stream.
 * \param library_kernels the same.
 */
std::unique_ptr<Stream> MakeCudaStream(const TvmAbi* abi, int device,
                                       const LoadedFunctions* functions,
                                       const LoadedLibraryKernels* library_kernels, Device* memory);

/*! \brief A bare stream that no other stream waits for; gone with the object. */
class CudaStreamHandle {
 public:
  CudaStreamHandle(const CudaRuntime& cuda, int device);
  ~CudaStreamHandle();
  CudaStreamHandle(const CudaStreamHandle&) = delete;
  CudaStreamHandle& operator=(const CudaStreamHandle&) = delete;

  CudaStream get() const { return stream_; }
  /*! \brief Whether its work is done; throws the fault of the device. */
  bool IsIdle() const;
  /*! \brief Holds up the calling thread until then. */
  void Synchronise() const;

 private:
  const CudaRuntime& cuda_;
  int device_;
  CudaStream stream_ = nullptr;
};

/*! \brief A bare event; gone with the object. */
class CudaEventHandle {
 public:
  CudaEventHandle(const CudaRuntime& cuda, int device, bool is_timed);
  ~CudaEventHandle();
  CudaEventHandle(const CudaEventHandle&) = delete;
  CudaEventHandle& operator=(const CudaEventHandle&) = delete;

  CudaEvent get() const { return event_; }
  void Record(CudaStream stream) const;
  bool IsReached() const;
  void HostWait() const;

 private:
  const CudaRuntime& cuda_;
  int device_;
  CudaEvent event_ = nullptr;
};

}  // namespace heteroplace::exec
