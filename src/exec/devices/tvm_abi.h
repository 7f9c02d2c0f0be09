// The part of TVM's C ABI that the executor uses, found by name in a loaded libtvm; or, without
// TVM, what own_runtime.h has of it.
//
// The declarations repeat the layout of DLPack and of TVM's c_runtime_api, which is the stable
// contract between compiled kernels and any runtime; TVM's headers are not needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace heteroplace::exec {

/*! \brief Device types of DLPack that the executor knows. */
inline constexpr int32_t kDLCPU = 1;
inline constexpr int32_t kDLCUDA = 2;

/*! \brief Type codes of DLPack. TVM writes bool as an unsigned integer of 1 bit. */
inline constexpr uint8_t kDLInt = 0;
inline constexpr uint8_t kDLUInt = 1;
inline constexpr uint8_t kDLFloat = 2;
inline constexpr uint8_t kDLBfloat = 4;
inline constexpr uint8_t kDLBool = 6;

/*! \brief Type code of a `DLTensor*` argument of a packed function. */
inline constexpr int kTVMDLTensorHandle = 7;

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;    // [ndim]
  int64_t* strides;  // null: compact, row major
  uint64_t byte_offset;
};

union TVMValue {
  int64_t v_int64;
  double v_float64;
  void* v_handle;
  const char* v_str;
  DLDataType v_type;
  DLDevice v_device;
};

using TVMModuleHandle = void*;
using TVMFunctionHandle = void*;
using TVMStreamHandle = void*;

/*! \brief A compiled kernel as it is in a library; 0 for success. */
using PackedCFunction = int (*)(TVMValue* args, int* type_codes, int num_args, TVMValue* ret_value,
                                int* ret_type_code, void* resource);

struct LibraryKernel;

/*! \brief A kernel: its address in a library where it has one, and TVM's handle for it; or what a
 * library of NVIDIA's computes, and neither. */
struct KernelFunction {
  PackedCFunction address = nullptr;
  TVMFunctionHandle handle = nullptr;
  const LibraryKernel* library_kernel = nullptr;
};

/*! \brief What a parallel loop's body learns of its launch. */
struct TVMParallelGroupEnv {
  void* sync_handle;  // [num_task] counters of TVM's barrier
  int32_t num_task;
};

/*! \brief Body of a parallel loop: does part `task_id` of `env->num_task`. */
using FTVMParallelLambda = int (*)(int task_id, TVMParallelGroupEnv* env, void* cdata);

inline bool operator==(const DLDevice& a, const DLDevice& b) {
  return a.device_type == b.device_type && a.device_id == b.device_id;
}

/*! \brief Whether its memory is the host's. */
inline bool IsHost(const DLDevice& device) { return device.device_type == kDLCPU; }

/*! \brief "cpu:0", "cuda:1". */
std::string DeviceName(const DLDevice& device);

/*! \brief "float32", "bool". */
std::string TypeName(const DLDataType& dtype);

/*! \brief "float32 (1, 3, 224, 224)". Libraries of kernels have such texts
 * (`exec/engine/kernel_arguments.h`). */
std::string DescribeTensor(const DLDataType& dtype, const std::vector<int64_t>& shape);

/*!
 * \brief The functions of one libtvm. Immutable; any thread may call them.
 *
 * Every function returns 0 for success, and leaves its message in GetLastError otherwise.
 */
struct TvmAbi {
  int (*ModLoadFromFile)(const char* path, const char* format, TVMModuleHandle* out);
  int (*ModGetFunction)(TVMModuleHandle module, const char* name, int query_imports,
                        TVMFunctionHandle* out);
  int (*ModFree)(TVMModuleHandle module);
  int (*ObjectRetain)(void* object);
  int (*FuncCall)(TVMFunctionHandle function, TVMValue* args, int* type_codes, int num_args,
                  TVMValue* ret_value, int* ret_type_code);
  int (*FuncFree)(TVMFunctionHandle function);
  /*! \brief Makes a handle for a C function; `resource` is its last argument. */
  int (*FuncCreateFromCFunc)(int (*function)(TVMValue* args, int* type_codes, int num_args,
                                             void* ret_value, void* resource),
                             void* resource, void (*finalizer)(void* resource),
                             TVMFunctionHandle* out);
  /*! \brief What host parts of kernels ask for the functions that they call. */
  int (*GetFuncFromEnv)(void* environment, const char* name, TVMFunctionHandle* out);
  const char* (*GetLastError)();
  /*! \brief The exception by which a function of Python has failed in the calling thread; null:
   * the last error is none. */
  void* (*GetLastPythonError)();
  void (*DropLastPythonError)();
  void (*SetLastError)(const char* message);
  int (*SetStream)(int device_type, int device_id, TVMStreamHandle stream);
  /*! \brief Scratch memory of kernels, from a pool that TVM keeps for the calling thread. */
  void* (*AllocWorkspace)(int device_type, int device_id, uint64_t bytes, int type_code,
                          int type_bits);
  int (*FreeWorkspace)(int device_type, int device_id, void* data);
  /*! \brief Bounds the pool of the calling thread; null where this TVM does not export it. */
  void (*SetMaxConcurrency)(int num_threads);
  /*! \brief Handle of dlopen; its dependencies (libcudart) are searched through it too. Null: there
   * is no TVM, and only what `OwnRuntime` has. */
  void* library;

  bool IsTvm() const { return library != nullptr; }

  /*! \brief Last line of the calling thread's last TVM error, without the stack trace. An
   * exception of Python is forgotten by that. */
  std::string LastErrorLine() const;
  /*! \brief Sets the last error; leaves the one before where TVM has no memory for the text. For
   * functions that compiled code calls, through which no exception may pass. */
  void LeaveError(const char* message) const noexcept;
};

/*!
 * \brief Finds the functions in libtvm, loading it if the process has not.
 * \throws Error kExecution when the file cannot be loaded, or a function is missing.
 */
TvmAbi LoadTvmAbi(const std::string& libtvm_path);

}  // namespace heteroplace::exec
