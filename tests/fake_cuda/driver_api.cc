// The functions of libcuda: code and launches, and words that streams wait for and write.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <sstream>

#include "launch.h"

using namespace fake;

extern "C" {
const char* cudaGetErrorString(int error);
}

namespace {

struct Module {
  int device;
  void* library;
  bool is_alive = true;
};

struct Function {
  std::shared_ptr<Module> module;
  const FakeKernel* kernel;
  std::string name;
  /*! \brief Code goes to the device when it is first needed, as the driver does by default. */
  bool is_loaded = false;
};

struct Code {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Module>> modules;                              // guarded by mutex
  std::map<std::pair<void*, std::string>, std::unique_ptr<Function>> functions;  // guarded by mutex
};

Code& TheCode() {
  static Code* code = new Code;
  return *code;
}

/*! \brief Notes that a function's code has gone to the device. */
void Load(Function* function, const char* by) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (!function->is_loaded && state.is_running && std::this_thread::get_id() != state.caller) {
    state.reports.push_back(std::string(by) + ": loads kernel " + function->name + " in a run");
  }
  function->is_loaded = true;
}

/*! \brief A launch, with copies of its arguments. */
struct Launch {
  Function* function;
  Extent grid;
  Extent extent;
  int device;
  std::vector<std::vector<char>> values;

  void Run() {
    const FakeKernel& kernel = *function->kernel;
    std::vector<void*> arguments;
    for (size_t a = 0; a < values.size(); ++a) {
      arguments.push_back(values[a].data());
      if (!kernel.are_pointers[a]) continue;
      void* pointer;
      std::memcpy(&pointer, values[a].data(), sizeof(pointer));
      if (pointer == nullptr) continue;
      const std::string what = "argument " + std::to_string(a) + " of kernel " + function->name;
      const std::string why = WhyNotUsable(pointer, 1, device, what.c_str());
      if (!why.empty()) {
        Broken(why, 0);
        SetFault(device, 700);
        return;
      }
    }
    int code = 0;
    {
      std::lock_guard lock(Get().mutex);
      const auto fault = Get().faults.find("kernel " + function->name);
      if (fault != Get().faults.end() && --fault->second.after_calls < 0) {
        code = fault->second.code;
        Get().faults.erase(fault);
      }
    }
    if (code > 0) {
      SetFault(device, code);
      return;
    }
    while (code < 0 && !IsReleased()) Delay();  // a kernel that never ends
    RunBlocks(kernel, grid, extent, arguments.data());
  }

  static bool IsReleased() {
    std::lock_guard lock(Get().mutex);
    return Get().is_released;
  }
};

}  // namespace

FAKE_EXPORT int cuInit(unsigned) { return 0; }

FAKE_EXPORT int cuDeviceGetCount(int* count) {
  *count = Get().num_devices;
  return 0;
}

FAKE_EXPORT int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(length));
  return 0;
}

FAKE_EXPORT int cuDeviceGet(int* device, int index) {
  *device = index;
  return index < Get().num_devices ? 0 : kInvalidDevice;
}

FAKE_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{8} << 30;
  return 0;
}

FAKE_EXPORT int cuDriverGetVersion(int* version) {
  *version = 12090;
  return 0;
}

FAKE_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (const int error = Begin(__func__, kSurvives); error != 0) return error;
  if (device < 0 || device >= Get().num_devices) return kInvalidDevice;
  *value = AttributeOf(attribute);
  return 0;
}

FAKE_EXPORT int cuGetErrorName(int error, const char** text) {
  static thread_local std::string name;
  name = "FAKE_CUDA_ERROR_" + std::to_string(error);
  *text = name.c_str();
  return 0;
}

FAKE_EXPORT int cuGetErrorString(int error, const char** text) {
  *text = cudaGetErrorString(error);
  return 0;
}

/*! \brief An image is a text: "// fake PTX" or "fake machine code sm_80", then a path. */
FAKE_EXPORT int cuModuleLoadData(void** out, const void* image) {
  if (const int error = Begin(__func__, kChangesMemory | kNotInCapture); error != 0) return error;
  std::istringstream text(static_cast<const char*>(image));
  std::string first, path;
  std::getline(text, first);
  std::getline(text, path);
  if (first.rfind("fake machine code ", 0) == 0) {
    if (first != "fake machine code sm_80") return kNoBinaryForGpu;
    std::lock_guard lock(Get().mutex);
    ++Get().calls["(machine code)"];
  } else if (first != "// fake PTX") {
    return Broken("cuModuleLoadData: no image of the fake's compiler: " + first, 200);
  }
  auto module = std::make_shared<Module>();
  module->device = CurrentDevice();
  module->library = dlopen(path.substr(3).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module->library == nullptr) return Broken(std::string("cuModuleLoadData: ") + dlerror(), 200);
  *out = module.get();
  {
    std::lock_guard lock(TheCode().mutex);
    TheCode().modules[*out] = module;
  }
  std::lock_guard lock(Get().mutex);
  ++Get().num_modules;
  return 0;
}

FAKE_EXPORT int cuModuleUnload(void* handle) {
  if (const int error = Begin(__func__, kChangesMemory | kNotInCapture | kReleases); error != 0) {
    return error;
  }
  std::lock_guard code_lock(TheCode().mutex);
  const auto found = TheCode().modules.find(handle);
  if (found == TheCode().modules.end() || !found->second->is_alive) {
    return Broken("cuModuleUnload: a module that does not live", kInvalidHandle);
  }
  if (found->second->device != CurrentDevice()) {
    Broken("cuModuleUnload: a module of another device than the current one", 0);
  }
  found->second->is_alive = false;
  std::lock_guard lock(Get().mutex);
  --Get().num_modules;
  return 0;
}

FAKE_EXPORT int cuModuleGetFunction(void** out, void* handle, const char* name) {
  if (const int error = Begin(__func__, kChangesMemory | kNotInCapture); error != 0) return error;
  std::lock_guard lock(TheCode().mutex);
  const auto found = TheCode().modules.find(handle);
  if (found == TheCode().modules.end() || !found->second->is_alive) {
    return Broken("cuModuleGetFunction: a module that does not live", kInvalidHandle);
  }
  const std::string symbol = std::string("fake_kernel_") + name;
  const auto* kernel =
      static_cast<const FakeKernel*>(dlsym(found->second->library, symbol.c_str()));
  if (kernel == nullptr) return kNotFound;
  auto& function = TheCode().functions[{handle, name}];
  if (function == nullptr) {
    function = std::make_unique<Function>(Function{found->second, kernel, name});
  }
  *out = function.get();
  return 0;
}

FAKE_EXPORT int cuModuleGetGlobal_v2(uint64_t*, size_t*, void*, const char*) { return kNotFound; }

FAKE_EXPORT int cuMemsetD32_v2(uint64_t, unsigned, size_t) { return 801; }

FAKE_EXPORT int cuFuncSetAttribute(void* function, int, int) {
  if (const int error = Begin(__func__, kChangesMemory); error != 0) return error;
  Load(static_cast<Function*>(function), __func__);
  return 0;
}

FAKE_EXPORT int cuFuncGetAttribute(int* value, int attribute, void* handle) {
  if (const int error = Begin(__func__, kChangesMemory); error != 0) return error;
  auto* function = static_cast<Function*>(handle);
  Load(function, __func__);
  *value = attribute == 0 ? static_cast<int>(function->kernel->max_threads) : 0;
  return 0;
}

FAKE_EXPORT int cuFuncLoad(void* function) {
  if (const int error = Begin(__func__, kChangesMemory); error != 0) return error;
  Load(static_cast<Function*>(function), __func__);
  return 0;
}

FAKE_EXPORT int cuLaunchKernel(void* handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z,
                               unsigned shared_bytes, void* stream_handle, void** arguments,
                               void**) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  auto* function = static_cast<Function*>(handle);
  auto stream = FindStream(stream_handle, __func__);
  if (stream == nullptr) return kInvalidHandle;
  const auto broken = [&](const std::string& text) {
    return Broken("cuLaunchKernel of " + function->name + ": " + text, kInvalidHandle);
  };
  if (!function->module->is_alive) return broken("its module is unloaded");
  if (stream->device != CurrentDevice()) return broken("the stream is not of the current device");
  if (function->module->device != stream->device) return broken("code of another device");
  Launch launch{
      function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, stream->device, {}};
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (threads == 0 || threads > function->kernel->max_threads || grid_x * grid_y * grid_z == 0) {
    return kInvalidValue;
  }
  if (shared_bytes > (48u << 10)) return kInvalidValue;
  for (unsigned a = 0; a < function->kernel->num_arguments; ++a) {
    const char* from = static_cast<const char*>(arguments[a]);
    launch.values.emplace_back(from, from + function->kernel->sizes[a]);
  }
  Load(function, __func__);
  Issue(stream.get(), {[launch]() mutable { launch.Run(); }});
  return 0;
}

/*! \brief A stream that words may be used with: 801 where the device has none, 0 else. */
static int FindWordStream(void* handle, const char* function, std::shared_ptr<Stream>* stream) {
  *stream = FindStream(handle, function);
  if (*stream == nullptr) return kInvalidHandle;
  if (!Get().has_words) return Broken(std::string(function) + ": the device has no words", 801);
  if ((*stream)->capture == nullptr) return 0;
  return Broken(std::string(function) + ": a value of one request in a graph", kInvalidValue);
}

FAKE_EXPORT int cuStreamWriteValue32_v2(void* handle, uint64_t address, uint32_t value, unsigned) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  std::shared_ptr<Stream> stream;
  if (const int error = FindWordStream(handle, __func__, &stream); error != 0) return error;
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(address);
  const std::string why = WhyNotUsable(word, 4, stream->device, "the word");
  if (!why.empty()) return Broken("cuStreamWriteValue32: " + why, kInvalidValue);
  Issue(stream.get(), {[=] { word->store(value); }, /*is_control=*/false, /*is_mark=*/true});
  return 0;
}

FAKE_EXPORT int cuStreamWaitValue32_v2(void* handle, uint64_t address, uint32_t value,
                                       unsigned flags) {
  if (const int error = Begin(__func__, kPlain); error != 0) return error;
  std::shared_ptr<Stream> stream;
  if (const int error = FindWordStream(handle, __func__, &stream); error != 0) return error;
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(address);
  const std::string why = WhyNotUsable(word, 4, stream->device, "the word");
  if (!why.empty()) return Broken("cuStreamWaitValue32: " + why, kInvalidValue);
  if ((flags & 3) != 0) return Broken("cuStreamWaitValue32: only greater or equal", kInvalidValue);
  const auto wait = [=] {
    while (static_cast<int32_t>(word->load() - value) < 0 && !Launch::IsReleased()) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  };
  Issue(stream.get(), {wait, /*is_control=*/true});
  return 0;
}
