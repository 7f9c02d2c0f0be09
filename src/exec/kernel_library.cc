#include "exec/kernel_library.h"

#include <dlfcn.h>

#include <atomic>

#include "exec/team.h"
#include "support/error.h"

namespace heteroplace {

KernelLibrary::KernelLibrary(const TvmAbi* abi, const std::string& path, TVMModuleHandle module)
    : abi_(abi), path_(path) {
  if (path.empty()) {
    if (module != nullptr && abi_->ObjectRetain(module) != 0) {
      throw Error(ErrorKind::kArtifact, "no TVM module: " + abi_->LastErrorLine());
    }
    module_ = module;
    return;
  }
  // Opened here first for dlsym, and because the linker's message is clearer than TVM's.
  library_ = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library_ == nullptr) {
    throw Error(ErrorKind::kArtifact, "cannot load kernels from '" + path + "': " + dlerror());
  }
  if (abi_->ModLoadFromFile(path.c_str(), "so", &module_) != 0) {
    dlclose(library_);
    throw Error(ErrorKind::kArtifact,
                "TVM cannot load kernels from '" + path + "': " + abi_->LastErrorLine());
  }
  launch_ = static_cast<void**>(Symbol("__TVMBackendParallelLaunch"));
  // The compiler leaves out what no kernel uses. Chunks of one launch that wait for each other
  // would hang on a ticket, so a library with barriers runs its loops serially.
  has_teams_ = Symbol("__TVMBackendParallelBarrier") == nullptr;
}

KernelLibrary::~KernelLibrary() {
  for (TVMFunctionHandle function : functions_) abi_->FuncFree(function);
  if (module_ != nullptr) abi_->ModFree(module_);
  if (library_ != nullptr) dlclose(library_);
}

KernelFunction KernelLibrary::Function(const std::string& symbol) {
  TVMFunctionHandle function = nullptr;
  if (module_ != nullptr &&
      abi_->ModGetFunction(module_, symbol.c_str(), /*query_imports=*/1, &function) != 0) {
    throw Error(ErrorKind::kArtifact, "kernel '" + symbol + "': " + abi_->LastErrorLine());
  }
  if (function == nullptr) {
    const std::string where = !path_.empty()       ? "'" + path_ + "' does not have"
                              : module_ != nullptr ? "the module in memory does not have"
                                                   : "no library was given to provide";
    throw Error(ErrorKind::kArtifact,
                where + " kernel '" + symbol + "'; build the program and its kernels together");
  }
  functions_.push_back(function);
  return {reinterpret_cast<PackedCFunction>(Symbol(symbol.c_str())), function};
}

void* KernelLibrary::Symbol(const char* name) const {
  return library_ == nullptr ? nullptr : dlsym(library_, name);
}

void KernelLibrary::InstallLaunch() {
  if (launch_ == nullptr) return;
  // Atomic: another executor of this file may be running, and its kernels read the pointer.
  std::atomic_ref<void*>(*launch_).store(reinterpret_cast<void*>(&ParallelLaunch),
                                         std::memory_order_release);
}

}  // namespace heteroplace
