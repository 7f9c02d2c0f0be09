// Our own launch of kernels on GPUs, in place of TVM's.
//
// The host part of a kernel, which TVM has compiled, computes the extents of the grid and asks its
// environment for the device's function by name, once, and then calls it through two pointers in
// its library. The executor stores GetFunctionFromEnv and CallFunction there. Functions are loaded
// when a program is, never in a run (TVM's own module loads each at its first call); they go to the
// stream that the calling thread has named; and a failure is a message of its own.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "exec/devices/cuda/cuda_api.h"
#include "exec/devices/device_code.h"
#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*!
 * \brief A library's code for GPUs, and the handles that its host parts keep of the functions.
 *
 * Host parts keep handles for good, so it must live as long as the library is loaded. Immutable.
 */
class DeviceFunctionTable {
 public:
  /*! \brief What CallFunction does for a handle that is none of a device's functions. */
  static constexpr int64_t kUnknown = -1;
  static constexpr int64_t kSetDevice = -2;

  /*! \param modules see DeviceCode. \throws Error kArtifact, as DeviceCode. */
  DeviceFunctionTable(const TvmAbi& abi, const char* modules);
  ~DeviceFunctionTable();
  DeviceFunctionTable(const DeviceFunctionTable&) = delete;
  DeviceFunctionTable& operator=(const DeviceFunctionTable&) = delete;

  const DeviceCode& code() const { return code_; }

  /*! \brief The handle of a function, or null. */
  TVMFunctionHandle Handle(const char* name) const;

  /*! \brief Position of the function of a handle, or one of the values above. */
  int64_t Find(TVMFunctionHandle handle) const;

 private:
  void FreeHandles();

  /*! \brief A copy: the table outlives the executor that makes it, if others use the library. */
  TvmAbi abi_;
  DeviceCode code_;
  std::vector<TVMFunctionHandle> handles_;  // [num_functions], then that of kSetDevice
  std::unordered_map<TVMFunctionHandle, int64_t> by_handle_;
};

/*! \brief Functions of a table on one device. */
class LoadedFunctions {
 public:
  /*!
   * \brief Loads what some kernels of the library launch.
   * \throws Error kArtifact where their code does not fit the device; kExecution else.
   */
  LoadedFunctions(const CudaRuntime& cuda, int device, const DeviceFunctionTable* table,
                  const std::vector<std::string>& symbols);
  ~LoadedFunctions();
  LoadedFunctions(const LoadedFunctions&) = delete;
  LoadedFunctions& operator=(const LoadedFunctions&) = delete;

  const DeviceFunctionTable& table() const { return *table_; }
  /*! \brief The function at a position of the table; null if it is not loaded. */
  CudaFunction At(int64_t function) const { return functions_[static_cast<size_t>(function)]; }

 private:
  CudaModule LoadImage(const DeviceImage& image) const;
  CudaFunction LoadFunction(CudaModule module, const DeviceFunction& function) const;
  void Unload();

  const CudaRuntime& cuda_;
  int device_;
  const DeviceFunctionTable* table_;
  std::vector<CudaModule> modules_;      // [num_images], null if not needed here
  std::vector<CudaFunction> functions_;  // [num_functions]
};

/*! \brief Where the calling thread's launches go. */
struct LaunchTarget {
  const TvmAbi* abi = nullptr;
  const CudaRuntime* cuda = nullptr;
  const LoadedFunctions* functions = nullptr;
  CudaStream stream = nullptr;
  int device = 0;
};

/*!
 * \brief Names the target of the calling thread (null: TVM's); it must outlive the launches.
 * \return whether it was another one before.
 */
bool SetLaunchTarget(const LaunchTarget* target);

/*! \brief Tells what TVM does for threads without a target. Any thread. */
void SetForeignCalls(const TvmAbi& abi);

/*! \brief What the executor stores as `__TVMBackendGetFuncFromEnv` of a library. */
int GetFunctionFromEnv(void* environment, const char* name, TVMFunctionHandle* out);

/*! \brief What the executor stores as `__TVMFuncCall` of a library. */
int CallFunction(TVMFunctionHandle function, TVMValue* arguments, int* type_codes,
                 int num_arguments, TVMValue* result, int* result_code);

}  // namespace heteroplace::exec
