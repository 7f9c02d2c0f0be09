#include "exec/devices/own_runtime.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <new>

#include "exec/program/bundle.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Pointers of a library through which its kernels reach what only TVM has. */
constexpr const char* kPointersToTvm[] = {"__TVMFuncCall", "__TVMBackendGetFuncFromEnv",
                                          "__TVMBackendParallelBarrier"};

/*! \brief Empty: this thread has had no error. */
thread_local std::string last_error;

const char* LastError() { return last_error.empty() ? nullptr : last_error.c_str(); }

/*! \brief Called by kernels, through which no exception may pass. */
void KeepError(const char* message) noexcept {
  try {
    last_error = message;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
}

bool UsesGpu(const Program& program) {
  const auto is_gpu = [](const auto& at) { return at.device.device_type == kDLCUDA; };
  return std::ranges::any_of(program.queues, is_gpu) || std::ranges::any_of(program.spaces, is_gpu);
}

}  // namespace

TvmAbi OwnRuntime() {
  TvmAbi abi{};
  abi.GetLastError = &LastError;
  abi.GetLastPythonError = []() -> void* { return nullptr; };
  abi.DropLastPythonError = [] {};
  abi.SetLastError = &KeepError;
  return abi;
}

bool CallsTvm(void* library) {
  return std::ranges::any_of(
      kPointersToTvm, [library](const char* name) { return dlsym(library, name) != nullptr; });
}

bool NeedsTvm(const std::string& library_path, const std::string& program_text) {
  if (std::ranges::any_of(ParsePrograms(program_text), UsesGpu)) return true;
  if (library_path.empty()) return false;
  const std::unique_ptr<void, int (*)(void*)> library(
      dlopen(library_path.c_str(), RTLD_LAZY | RTLD_LOCAL), &dlclose);
  if (library == nullptr) {
    throw Error(ErrorKind::kArtifact,
                "cannot load kernels from '" + library_path + "': " + dlerror());
  }
  return CallsTvm(library.get());
}

}  // namespace heteroplace::exec
