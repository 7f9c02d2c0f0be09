// Launches recorded as a CUDA graph, to be issued by one call.
//
// A graph keeps addresses and arguments of its launches, so it belongs to one request slot.
#pragma once

#include <functional>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/device.h"

namespace heteroplace::exec {

/*! \brief A graph that was captured from a stream and brought to the device; gone with the object.
 */
class CudaGraphObject : public RecordedWork {
 public:
  /*!
   * \brief Captures what `issue` does on `stream`, which must be of the current device.
   * \throws Error kExecution with CUDA's message, or what `issue` throws; nothing is left then.
   */
  CudaGraphObject(const CudaRuntime& cuda, int device, CudaStream stream,
                  const std::function<void()>& issue);
  ~CudaGraphObject() override;
  CudaGraphObject(const CudaGraphObject&) = delete;
  CudaGraphObject& operator=(const CudaGraphObject&) = delete;

  void Launch(CudaStream stream) const;

 private:
  const CudaRuntime& cuda_;
  int device_;
  CudaGraphExec executable_ = nullptr;
};

}  // namespace heteroplace::exec
