// Kernels of NVIDIA's libraries on a GPU: all is made when a program is loaded, and a run only
// calls the functions that compute, on our stream and in our scratch memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/device.h"
#include "exec/devices/libraries/library_kernel.h"
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

/*!
 * \brief Scratch memory of a call.
 *
 * The first block of a stack begins where the device's memory does, at a multiple of the 256 bytes
 * that the libraries ask for; it is given back when the call is issued, in the stream's order.
 */
class ScratchMemory {
 public:
  ScratchMemory(WorkspacePool* pool, int64_t bytes);
  ~ScratchMemory();
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  /*! \brief Null where there are no bytes. */
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  WorkspacePool* pool_;
  uint64_t bytes_;
  void* data_;
};

/*! \brief What a call's argument points to; null for an argument that the kernel does not have. */
void* DataOf(const KernelCall& call, int32_t operand);

/*! \brief " on cuda:0". */
std::string OnDevice(int device);

/*! \brief "the algorithm of the float32 product of ... on cuda:0". */
std::string AlgorithmOnDevice(const LibraryKernel& kernel, int device);

/*! \brief Behind it, where the library refuses it. */
inline constexpr const char* kChosenElsewhere =
    " (it was chosen for another GPU: place the model again here)";

/*! \brief Checks that a kernel's scratch memory is enough. \throws Error kExecution. */
void CheckScratch(const LibraryKernel& kernel, size_t needed_bytes, int device);

/*!
 * \brief The version of a library, as 120903 for 12.9.3.
 * \param prefix of its kernels' names: "cublaslt" or "cudnn".
 * \throws Error kExecution: there is none; kArtifact: there is no such library.
 */
int64_t LibraryVersion(const TvmAbi& abi, std::string_view prefix);

/*!
 * \brief The algorithms that a library offers for a kernel on a device, likely ones first.
 * \param symbol its version and algorithm are not looked at.
 * \param max_workspace_bytes that an algorithm may need.
 * \param max_count of algorithms.
 * \return names of the kernel with each; none: the library cannot compute it.
 * \throws Error kExecution where there is no library or device; kArtifact: it is no such kernel.
 */
std::vector<std::string> FindAlgorithms(const TvmAbi& abi, int device, std::string_view symbol,
                                        int64_t max_workspace_bytes, int max_count);

}  // namespace heteroplace::exec
