#include "exec/engine/kernel_library.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>

#include "exec/devices/own_runtime.h"
#include "exec/devices/workspace.h"
#include "exec/file/processor.h"
#include "exec/team/team.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief A loaded file, and the number of libraries that use it. */
struct LoadedFile {
  /*! \brief TVM's, and how it is given back; null where it was loaded without TVM. */
  TVMModuleHandle module;
  decltype(TvmAbi::ModFree) free_module;
  int num_users;
  /*! \brief Its code for GPUs; null if it has none. */
  std::shared_ptr<const DeviceFunctionTable> device_functions;
};

/*!
 * \brief Loaded files by their handle of dlopen, which is one for each file.
 *
 * TVM's loading sets the pointers of the file to its own pools. While another executor runs kernels
 * of the file, that would send scratch memory from our pools back to TVM's.
 */
struct LoadedFiles {
  std::mutex mutex;
  std::map<void*, LoadedFile> files;  // guarded by mutex
};

LoadedFiles& Loaded() {
  static LoadedFiles loaded;
  return loaded;
}

void Point(void** pointer, void* function) {
  if (pointer == nullptr) return;
  // Atomic: another executor of this file may be running, and its kernels read the pointer; the
  // line stays in their caches unless somebody else has changed it.
  const std::atomic_ref<void*> shared(*pointer);
  if (shared.load(std::memory_order_relaxed) == function) return;
  shared.store(function, std::memory_order_release);
}

}  // namespace

KernelLibrary::KernelLibrary(const TvmAbi* abi, const std::string& path, TVMModuleHandle module)
    : abi_(abi), path_(path) {
  if (path.empty()) {
    if (module != nullptr && abi_->ObjectRetain(module) != 0) {
      throw Error(ErrorKind::kArtifact, "no TVM module: " + abi_->LastErrorLine());
    }
    module_ = module;
    return;
  }
  if (abi->IsTvm()) {
    SetForeignWorkspace(*abi);
    SetForeignCalls(*abi);
  }
  LoadFile();
  set_last_error_ = static_cast<void**>(Symbol("__TVMAPISetLastError"));
  launch_ = static_cast<void**>(Symbol("__TVMBackendParallelLaunch"));
  alloc_workspace_ = static_cast<void**>(Symbol("__TVMBackendAllocWorkspace"));
  free_workspace_ = static_cast<void**>(Symbol("__TVMBackendFreeWorkspace"));
  if (device_functions_ != nullptr) {
    get_function_ = static_cast<void**>(Symbol("__TVMBackendGetFuncFromEnv"));
    call_function_ = static_cast<void**>(Symbol("__TVMFuncCall"));
  }
  // The compiler leaves out what no kernel uses. Chunks of one launch that wait for each other
  // would hang on a ticket, so a library with barriers runs its loops serially.
  has_teams_ = Symbol("__TVMBackendParallelBarrier") == nullptr;
}

KernelLibrary::~KernelLibrary() {
  for (TVMFunctionHandle function : functions_) {
    if (function != nullptr) abi_->FuncFree(function);
  }
  if (library_ != nullptr) {
    UnloadFile();
  } else {
    FreeModule();
  }
}

void KernelLibrary::FreeModule() {
  if (module_ != nullptr) abi_->ModFree(module_);
}

void KernelLibrary::LoadFile() {
  std::scoped_lock lock(Loaded().mutex);
  // Opened here first for dlsym, and because the linker's message is clearer than TVM's.
  // All functions are found now: one that is missing would end the process when it is called.
  library_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    throw Error(ErrorKind::kArtifact, "cannot load kernels from '" + path_ + "': " + dlerror());
  }
  if (Symbol("heteroplace_uses_amx") != nullptr && !RequestTiles()) {
    dlclose(library_);
    throw Error(ErrorKind::kExecution,
                "the kernels of '" + path_ +
                    "' multiply by AMX, which the system does not let this process use; compile "
                    "for a target without the key 'amx'");
  }
  if (!abi_->IsTvm() && CallsTvm(library_)) {
    dlclose(library_);
    throw Error(ErrorKind::kExecution, "the kernels of '" + path_ +
                                           "' call functions of TVM; give the path of its library");
  }
  const auto known = Loaded().files.find(library_);
  if (known != Loaded().files.end()) {
    module_ = known->second.module;
    device_functions_ = known->second.device_functions;
    ++known->second.num_users;
    return;
  }
  if (abi_->IsTvm() && abi_->ModLoadFromFile(path_.c_str(), "so", &module_) != 0) {
    dlclose(library_);
    throw Error(ErrorKind::kArtifact,
                "TVM cannot load kernels from '" + path_ + "': " + abi_->LastErrorLine());
  }
  try {
    const auto* modules = static_cast<const char*>(Symbol("__tvm_dev_mblob"));
    if (modules != nullptr && abi_->IsTvm()) {
      device_functions_ = std::make_shared<const DeviceFunctionTable>(*abi_, modules);
    }
    if (device_functions_ != nullptr && device_functions_->code().functions().empty()) {
      device_functions_.reset();
    }
    Loaded().files.emplace(library_, LoadedFile{module_, abi_->ModFree, 1, device_functions_});
  } catch (...) {
    FreeModule();
    dlclose(library_);
    throw;
  }
}

void KernelLibrary::UnloadFile() {
  std::scoped_lock lock(Loaded().mutex);
  const auto known = Loaded().files.find(library_);
  if (--known->second.num_users == 0) {
    // Perhaps another library's, which had TVM.
    if (known->second.module != nullptr) known->second.free_module(known->second.module);
    Loaded().files.erase(known);
  }
  dlclose(library_);
}

KernelFunction KernelLibrary::Function(const std::string& symbol) {
  TVMFunctionHandle& function = functions_.emplace_back(nullptr);
  if (module_ != nullptr && abi_->IsTvm() &&
      abi_->ModGetFunction(module_, symbol.c_str(), /*query_imports=*/1, &function) != 0) {
    throw Error(ErrorKind::kArtifact, "kernel '" + symbol + "': " + abi_->LastErrorLine());
  }
  const auto address = reinterpret_cast<PackedCFunction>(Symbol(symbol.c_str()));
  if (function == nullptr && address == nullptr) {
    const std::string where = !path_.empty()       ? "'" + path_ + "' does not have"
                              : module_ != nullptr ? "the module in memory does not have"
                                                   : "no library was given to provide";
    throw Error(ErrorKind::kArtifact,
                where + " kernel '" + symbol + "'; build the program and its kernels together");
  }
  return {address, function};
}

void* KernelLibrary::Symbol(const char* name) const {
  return library_ == nullptr ? nullptr : dlsym(library_, name);
}

void KernelLibrary::InstallRuntime() {
  Point(set_last_error_, reinterpret_cast<void*>(abi_->SetLastError));
  Point(launch_, reinterpret_cast<void*>(&ParallelLaunch));
  // First the one that takes back what either has given.
  Point(free_workspace_, reinterpret_cast<void*>(&FreeWorkspace));
  Point(alloc_workspace_, reinterpret_cast<void*>(&AllocWorkspace));
  Point(call_function_, reinterpret_cast<void*>(&CallFunction));
  Point(get_function_, reinterpret_cast<void*>(&GetFunctionFromEnv));
}

}  // namespace heteroplace::exec
