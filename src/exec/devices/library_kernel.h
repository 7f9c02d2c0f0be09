// A kernel that a library computes: it has no code, and its name says all of it.
//
// Parts implement such kernels, and register who reads their names. Whoever has a program then has
// its kernels too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

struct CudaRuntime;
class LoadedKernels;

/*! \brief What a library's kernel needs to know of an argument. */
struct LibraryArgument {
  DLDataType dtype;
  int64_t bytes;
};

struct LibraryKernel {
  virtual ~LibraryKernel() = default;

  /*! \brief "product of cuBLASLt", for messages. Kernels of one kind are loaded together. */
  virtual std::string Kind() const = 0;
  /*! \brief "float32 product of [8, 64] and [64, 32]", for messages. */
  virtual std::string Describe() const = 0;
  /*!
   * \brief Checks what it is called with: the bytes that it reads and writes are there.
   * \throws Error kArtifact.
   */
  virtual void CheckCall(const std::vector<LibraryArgument>& arguments) const = 0;
  /*!
   * \brief Makes the place of all kernels of this kind on a device, without any of them.
   * \throws Error kExecution where the library is missing.
   */
  virtual std::unique_ptr<LoadedKernels> MakeLoaded(const CudaRuntime& cuda, int device) const = 0;

 protected:
  LibraryKernel() = default;
  LibraryKernel(const LibraryKernel&) = default;
  LibraryKernel& operator=(const LibraryKernel&) = default;
};

/*! \brief Who reads the names of one library's kernels. */
struct LibraryReader {
  /*! \brief How they begin: "cublaslt:". */
  std::string_view prefix;
  /*! \brief Reads a name. \throws Error kArtifact, which says what is wrong with it. */
  std::shared_ptr<const LibraryKernel> (*read)(std::string_view symbol);
};

/*! \brief Lets programs have kernels of a library. Before the first program is read. */
void RegisterLibrary(const LibraryReader& reader);

/*! \brief Reads a kernel's name; null: it is of no library, and the kernel has code.
 * \throws Error as the reader. */
std::shared_ptr<const LibraryKernel> ReadLibraryKernel(std::string_view symbol);

}  // namespace heteroplace::exec
