// Kernels of libraries on a GPU: all is made when a program is loaded, and a run only calls the
// functions that compute, on our stream and in our scratch memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/device.h"
#include "exec/devices/library_kernel.h"
#include "exec/devices/workspace.h"

namespace heteroplace::exec {

/*! \brief Kernels of one library on one device. Used by the one thread that issues the work of all
 * queues and contexts of the device (Engine::GroupWorkers). */
class LoadedKernels {
 public:
  LoadedKernels() = default;
  virtual ~LoadedKernels() = default;
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  /*!
   * \brief Describes a kernel to the library, and lets it check the algorithm.
   * \param kernel of this library; must outlive this object.
   * \throws Error kExecution where the library has another version than the algorithm is of, or
   * does not take it on this device.
   */
  virtual void Add(const LibraryKernel& kernel) = 0;

  /*! \brief Issues a kernel. \param workspace of the stream. \throws Error kExecution. */
  virtual void Launch(const KernelCall& call, WorkspacePool* workspace,
                      CudaStream stream) const = 0;
};

/*! \brief The libraries' kernels of a program on one device. */
class LoadedLibraryKernels {
 public:
  /*!
   * \brief Describes them to their libraries.
   * \param kernels must outlive this object.
   * \throws Error kExecution as LoadedKernels::Add, and where a library is missing.
   */
  LoadedLibraryKernels(const CudaRuntime& cuda, int device,
                       const std::vector<const LibraryKernel*>& kernels);

  /*! \brief As LoadedKernels::Launch. */
  void Launch(const KernelCall& call, WorkspacePool* workspace, CudaStream stream) const;

 private:
  std::map<std::string, std::unique_ptr<LoadedKernels>> libraries_;  // by LibraryKernel::Kind
  std::map<const LibraryKernel*, LoadedKernels*> library_of_;
};

}  // namespace heteroplace::exec
