// Libraries of NVIDIA's that compute kernels, opened at run time: no build needs CUDA.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <type_traits>

#include "exec/devices/cuda/cuda_api.h"
#include "support/error.h"

namespace heteroplace::exec {

/*! \brief A file that a library may be in. */
struct LibraryFile {
  /*! \brief "libcublasLt.so.12" */
  const char* name;
  /*! \brief Its folder in NVIDIA's wheels, nvidia/<folder>/lib beside nvidia/cuda_runtime/lib. */
  const char* folder;
  /*! \brief "nvidia-cublas-cu12" */
  const char* wheel;
  /*! \brief Major version of the library. */
  int major;
};

/*! \brief Where a library is found, and how to get it. */
struct LibraryPlace {
  /*! \brief "cuBLASLt" */
  const char* name;
  /*! \brief Those for CUDA 12 and for CUDA 13, the preferred one first. */
  std::array<LibraryFile, 2> files;
  /*! \brief Option without which it is not needed. */
  const char* option;
  /*! \brief The function that makes handles, for messages. */
  const char* create;
};

/*! \brief What all such libraries have; their functions return 0 for success. */
struct NvidiaLibrary {
  const LibraryPlace* place;
  /*! \brief Its version, as 120903 for 12.9.3. */
  size_t (*GetVersion)();
  const char* (*GetErrorString)(int status);
  /*! \brief What the last call of this thread says besides; null: nothing does. */
  void (*GetLastErrorString)(char* message, size_t bytes);

  /*! \brief "CUBLAS_STATUS_NOT_SUPPORTED (cuBLASLt status 15)". */
  std::string Describe(int status) const;

  /*! \brief Throws Error kExecution unless a status is 0; the text is made only then. */
  template <typename... Parts>
  void Check(int status, const Parts&... what) const {
    if (status == 0) return;
    throw Error(ErrorKind::kExecution, (CudaRuntime::TextOf(what) + ...) + ": " + Describe(status));
  }

  /*! \brief "cuBLASLt 12.9.3". */
  std::string NameOf(int64_t version) const;

  /*! \brief What a kernel on a GPU must say of the library that it was made for.
   * \throws Error kExecution where this is another version. */
  void CheckVersion(int64_t of_program) const;
};

/*!
 * \brief Opens a library for good: it keeps what it has loaded on devices.
 * \return the first that can be opened: of NVIDIA's wheels beside the CUDA runtime in use, for each
 * version of CUDA, else the system's.
 * \throws Error kExecution where there is none, with how to get it.
 */
void* OpenLibrary(const CudaRuntime& cuda, const LibraryPlace& place);

/*! \brief A function of an open library. \throws Error kExecution. */
void* FindSymbol(void* library, const LibraryPlace& place, const char* name);

/*! \brief Sets a pointer to a function of an open library. \throws Error kExecution. */
template <typename Function>
void FindFunction(void* library, const LibraryPlace& place, const char* name, Function** out) {
  *out = reinterpret_cast<Function*>(FindSymbol(library, place, name));
}

/*! \brief What a library hands out; given back with this. */
using LibraryObject = std::unique_ptr<void, int (*)(void*)>;

/*!
 * \brief Makes an object of a library.
 * \param function that makes it, for messages.
 * \throws Error kExecution.
 */
template <typename... Parameters, typename... Arguments>
LibraryObject MakeObject(const NvidiaLibrary& library, const char* function,
                         int (*create)(void**, Parameters...), int (*destroy)(void*),
                         Arguments... arguments) {
  void* made = nullptr;
  library.Check(create(&made, arguments...), function);
  return {made, destroy};
}

/*! \brief The library's handle on one device, which Create and Destroy make; gone with the object.
 */
template <typename Library>
class LibraryHandle {
 public:
  /*! \throws Error kExecution. */
  LibraryHandle(const CudaRuntime& cuda, const Library& library, int device)
      : cuda_(cuda), library_(library), device_(device) {
    const DeviceScope scope(cuda_, device_);
    scope.Check();
    library_.Check(library_.Create(&handle_), library_.place->create,
                   " on " + DeviceName({kDLCUDA, device_}));
  }
  ~LibraryHandle() {
    const DeviceScope scope(cuda_, device_);
    library_.Destroy(handle_);  // what giving back answers nobody could mend
  }
  LibraryHandle(const LibraryHandle&) = delete;
  LibraryHandle& operator=(const LibraryHandle&) = delete;

  const Library& library() const { return library_; }
  void* get() const { return handle_; }

 private:
  const CudaRuntime& cuda_;
  const Library& library_;
  int device_;
  void* handle_ = nullptr;
};

}  // namespace heteroplace::exec
