// What a call of a library's kernel on a GPU needs, whichever library it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "exec/devices/device.h"
#include "exec/devices/workspace.h"
#include "parts/kernels/nvidia_kernel.h"

namespace heteroplace::exec {

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
std::string AlgorithmOnDevice(const NvidiaKernel& kernel, int device);

/*! \brief Behind it, where the library refuses it. */
inline constexpr const char* kChosenElsewhere =
    " (it was chosen for another GPU: place the model again here)";

/*! \brief Checks that a kernel's scratch memory is enough. \throws Error kExecution. */
void CheckScratch(const NvidiaKernel& kernel, size_t needed_bytes, int device);

}  // namespace heteroplace::exec
