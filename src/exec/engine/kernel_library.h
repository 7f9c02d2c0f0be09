// The compiled kernels of one artefact, loaded with TVM where they need it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/devices/cuda/cuda_launch.h"
#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*!
 * \brief A loaded module and the functions taken from it. Two executors may use one file.
 *
 * A module in memory (from a compiler in this process) hides its launch pointer, so its parallel
 * loops run serially on each worker, and its scratch memory is TVM's; only a library file has teams
 * and our pools.
 */
class KernelLibrary {
 public:
  /*!
   * \brief Loads a file, or takes a reference to a module in memory; with neither it is empty.
   * \param path a shared library that TVM exported, or "".
   * \param module a TVMModuleHandle, or null; only TVM has modules.
   * \throws Error kArtifact when the file cannot be loaded.
   */
  KernelLibrary(const TvmAbi* abi, const std::string& path, TVMModuleHandle module);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  /*! \brief The kernel of that name; owned by the library. \throws Error kArtifact if absent. */
  KernelFunction Function(const std::string& symbol);

  /*! \brief Address of a symbol of the file, or null. */
  void* Symbol(const char* name) const;

  /*! \brief Whether launches can be shared by a team; else they are serial. */
  bool HasTeams() const { return has_teams_; }

  /*! \brief The file's code for GPUs; null if it has none. */
  const DeviceFunctionTable* device_functions() const { return device_functions_.get(); }

  /*! \brief Whether the kernels are a module in memory. */
  bool IsInMemory() const { return library_ == nullptr && module_ != nullptr; }

  /*!
   * \brief Points the library's parallel loops, scratch memory and launches to our workers.
   *
   * Repeated before every run: whoever loads the same file by TVM resets the pointers to TVM's
   * pools. Nobody may do that during a run (executors do not: they share what is loaded).
   */
  void InstallRuntime();

 private:
  void LoadFile();
  void UnloadFile();
  void FreeModule();

  const TvmAbi* abi_;
  std::string path_;
  TVMModuleHandle module_ = nullptr;
  /*! \brief The file's handle of dlopen, or null. */
  void* library_ = nullptr;
  /*! \brief Addresses of the file's pointers to the runtime; null where no kernel uses one. */
  void** set_last_error_ = nullptr;
  void** launch_ = nullptr;
  void** alloc_workspace_ = nullptr;
  void** free_workspace_ = nullptr;
  void** get_function_ = nullptr;
  void** call_function_ = nullptr;
  /*! \brief Shared with other executors of the file, whose host parts hold its handles. */
  std::shared_ptr<const DeviceFunctionTable> device_functions_;
  bool has_teams_ = false;
  std::vector<TVMFunctionHandle> functions_;
};

}  // namespace heteroplace::exec
