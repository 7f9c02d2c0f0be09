#include "exec/devices/cuda/cuda_launch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

// Of cudaDeviceAttr and CUfunction_attribute.
constexpr int kMaxSharedBytesOptIn = 97;
constexpr int kFunctionSharedBytes = 1;
constexpr int kFunctionMaxDynamicSharedBytes = 8;

constexpr int kNoBinaryForGpu = 209;

/*! \brief What host parts call before the launch: TVM then makes the device the current one. */
constexpr std::string_view kSetDeviceName = "__tvm_set_device";

/*! \brief Arguments that fit without an allocation; TVM's fused kernels rarely have ten. */
constexpr size_t kUsualArguments = 32;

thread_local const LaunchTarget* current_target = nullptr;

/*! \brief TVM's own functions, the same for every executor of a process. */
std::atomic<decltype(TvmAbi::FuncCall)> foreign_call{nullptr};
std::atomic<decltype(TvmAbi::GetFuncFromEnv)> foreign_get{nullptr};
std::atomic<decltype(TvmAbi::SetLastError)> foreign_set_error{nullptr};

int Fail(const std::string& text) {
  current_target->abi->LeaveError(text.c_str());
  return -1;
}

/*! \brief No exception may pass through compiled code: memory may be short for a text. */
template <typename Work>
int Guarded(const Work& work) noexcept {
  try {
    return work();
  } catch (const std::exception& fault) {
    current_target->abi->LeaveError(CauseOf(fault));
    return -1;
  }
}

std::string Extents(const std::array<unsigned, 7>& numbers) {
  std::string text;
  for (size_t i = 0; i < 6; ++i) {
    text += (i == 0 ? "grid (" : i == 3 ? "), block (" : ", ") + std::to_string(numbers[i]);
  }
  return text + ")";
}

/*! \brief Where a launch finds an argument; `reals` keeps those that change their type. */
void* AddressOf(TVMValue* value, const DLDataType& type, float* real) {
  if (type.code == kDLFloat && type.bits == 32) {
    *real = static_cast<float>(value->v_float64);
    return real;
  }
  // Whole numbers of fewer bits are the low bytes of the 64, which come first.
  return value;
}

int Launch(const LaunchTarget& target, int64_t index, TVMValue* arguments, int num_arguments) {
  const DeviceFunction& function =
      target.functions->table().code().functions()[static_cast<size_t>(index)];
  const size_t count = function.arguments.size();
  if (static_cast<size_t>(num_arguments) != count + function.parameters.size()) {
    return Fail("GPU function '" + function.name + "' was called with " +
                std::to_string(num_arguments) + " values, expected " +
                std::to_string(count + function.parameters.size()));
  }
  const CudaFunction code = target.functions->At(index);
  if (code == nullptr) {
    return Fail("GPU function '" + function.name +
                "' is not loaded on cuda:" + std::to_string(target.device) +
                ": no kernel of this program should launch it there");
  }
  std::array<void*, kUsualArguments> few;
  std::array<float, kUsualArguments> few_reals;
  std::vector<void*> many(count > few.size() ? count : 0);
  std::vector<float> many_reals(many.size());
  void** pointers = many.empty() ? few.data() : many.data();
  float* reals = many.empty() ? few_reals.data() : many_reals.data();
  for (size_t a = 0; a < count; ++a) {
    pointers[a] = AddressOf(&arguments[a], function.arguments[a], &reals[a]);
  }
  std::array<unsigned, 7> numbers = {1, 1, 1, 1, 1, 1, 0};
  for (size_t p = 0; p < function.parameters.size(); ++p) {
    const int64_t value = arguments[count + p].v_int64;
    if (value == 0 && function.parameters[p] != LaunchParameter::kDynamicSharedBytes) return 0;
    numbers[static_cast<size_t>(function.parameters[p])] = static_cast<unsigned>(value);
  }
  const int error =
      TheDriver().LaunchKernel(code, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                               numbers[5], numbers[6], target.stream, pointers, nullptr);
  if (error == 0) return 0;
  return Fail("cannot launch GPU function '" + function.name + "' (" + Extents(numbers) +
              ") on cuda:" + std::to_string(target.device) + ": " + target.cuda->Describe(error));
}

/*! \brief What a host part's call of `__tvm_set_device` does: its worker has the device already. */
int CheckDevice(const LaunchTarget& target, const TVMValue* arguments) {
  const DLDevice asked{static_cast<int32_t>(arguments[0].v_int64),
                       static_cast<int32_t>(arguments[1].v_int64)};
  if (asked == DLDevice{kDLCUDA, target.device}) return 0;
  return Fail("the kernel's tensors are on " + DeviceName(asked) +
              ", its queue works on cuda:" + std::to_string(target.device));
}

/*! \brief Behind the handles, for whoever calls one by TVM's functions. */
int CallByTvm(TVMValue*, int*, int, void*, void*) {
  foreign_set_error.load(std::memory_order_relaxed)(
      "a kernel of an executor was called by another thread than its worker");
  return -1;
}

}  // namespace

DeviceFunctionTable::DeviceFunctionTable(const TvmAbi& abi, const char* modules)
    : abi_(abi), code_(modules) {
  handles_.reserve(code_.functions().size() + 1);  // first: what TVM gives must not be lost
  try {
    for (size_t f = 0; f <= code_.functions().size(); ++f) {
      TVMFunctionHandle handle = nullptr;
      if (abi_.FuncCreateFromCFunc(&CallByTvm, nullptr, nullptr, &handle) != 0) {
        throw Error(ErrorKind::kExecution, "TVMFuncCreateFromCFunc: " + abi_.LastErrorLine());
      }
      handles_.push_back(handle);
      const bool is_last = f == code_.functions().size();
      by_handle_.emplace(handle, is_last ? kSetDevice : static_cast<int64_t>(f));
    }
  } catch (...) {
    FreeHandles();
    throw;
  }
}

DeviceFunctionTable::~DeviceFunctionTable() { FreeHandles(); }

void DeviceFunctionTable::FreeHandles() {
  for (TVMFunctionHandle handle : handles_) abi_.FuncFree(handle);
}

TVMFunctionHandle DeviceFunctionTable::Handle(const char* name) const {
  if (name == kSetDeviceName) return handles_.back();
  const int64_t function = code_.Find(name);
  return function < 0 ? nullptr : handles_[static_cast<size_t>(function)];
}

int64_t DeviceFunctionTable::Find(TVMFunctionHandle handle) const {
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? kUnknown : found->second;
}

LoadedFunctions::LoadedFunctions(const CudaRuntime& cuda, int device,
                                 const DeviceFunctionTable* table,
                                 const std::vector<std::string>& symbols)
    : cuda_(cuda),
      device_(device),
      table_(table),
      modules_(table->code().images().size()),
      functions_(table->code().functions().size()) {
  const DeviceScope scope(cuda_, device_);
  scope.Check();
  try {
    for (const std::string& symbol : symbols) {
      for (size_t f : table_->code().FunctionsOf(symbol)) {
        const DeviceFunction& function = table_->code().functions()[f];
        CudaModule& module = modules_[function.image];
        if (module == nullptr) module = LoadImage(table_->code().images()[function.image]);
        if (functions_[f] == nullptr) functions_[f] = LoadFunction(module, function);
      }
    }
  } catch (...) {
    Unload();
    throw;
  }
}

LoadedFunctions::~LoadedFunctions() {
  const DeviceScope scope(cuda_, device_);
  Unload();
}

void LoadedFunctions::Unload() {
  for (CudaModule module : modules_) {
    if (module != nullptr) TheDriver().ModuleUnload(module);
  }
}

CudaModule LoadedFunctions::LoadImage(const DeviceImage& image) const {
  int capability = 0;
  cuda_.Check(cuda_.GetCapability(device_, &capability),
              "cudaDeviceGetAttribute of cuda:", device_);
  CudaModule module = nullptr;
  // Machine code runs on GPUs of its major capability that are not older.
  const bool is_for_device =
      image.capability / 10 == capability / 10 && image.capability <= capability;
  int error = kNoBinaryForGpu;
  if (!image.machine_code.empty() && is_for_device) {
    error = TheDriver().ModuleLoadData(&module, image.machine_code.data());
  }
  if (error == kNoBinaryForGpu) error = TheDriver().ModuleLoadData(&module, image.ptx.c_str());
  if (error == 0) return module;
  throw Error(ErrorKind::kArtifact,
              "the model's code cannot be loaded on cuda:" + std::to_string(device_) +
                  " (compute capability " + std::to_string(capability / 10) + "." +
                  std::to_string(capability % 10) + "): " + cuda_.Describe(error) +
                  "; build the model for this GPU");
}

CudaFunction LoadedFunctions::LoadFunction(CudaModule module,
                                           const DeviceFunction& function) const {
  const std::string what =
      "GPU function '" + function.name + "' on cuda:" + std::to_string(device_) + ": ";
  CudaFunction code = nullptr;
  cuda_.Check(TheDriver().ModuleGetFunction(&code, module, function.name.c_str()), what,
              "cuModuleGetFunction");
  // The driver may leave the code on the host until it is first needed, which would be in a run.
  if (TheDriver().FuncLoad != nullptr) cuda_.Check(TheDriver().FuncLoad(code), what, "cuFuncLoad");
  int own_bytes = 0;  // also makes drivers without cuFuncLoad bring the code
  cuda_.Check(TheDriver().FuncGetAttribute(&own_bytes, kFunctionSharedBytes, code), what,
              "cuFuncGetAttribute");
  if (function.HasDynamicShared()) {
    int max_bytes = 0;
    cuda_.Check(cuda_.DeviceGetAttribute(&max_bytes, kMaxSharedBytesOptIn, device_), what,
                "cudaDeviceGetAttribute");
    max_bytes = std::max(max_bytes - own_bytes, 0);
    cuda_.Check(TheDriver().FuncSetAttribute(code, kFunctionMaxDynamicSharedBytes, max_bytes), what,
                "cuFuncSetAttribute");
  }
  return code;
}

bool SetLaunchTarget(const LaunchTarget* target) {
  return std::exchange(current_target, target) != target;
}

void SetForeignCalls(const TvmAbi& abi) {
  foreign_call.store(abi.FuncCall, std::memory_order_relaxed);
  foreign_get.store(abi.GetFuncFromEnv, std::memory_order_relaxed);
  foreign_set_error.store(abi.SetLastError, std::memory_order_relaxed);
}

int GetFunctionFromEnv(void* environment, const char* name, TVMFunctionHandle* out) {
  if (current_target != nullptr && current_target->functions != nullptr) {
    const auto find = [&] {
      *out = current_target->functions->table().Handle(name);
      return 0;
    };
    *out = nullptr;
    if (Guarded(find) != 0) return -1;
    if (*out != nullptr) return 0;
  }
  return foreign_get.load(std::memory_order_relaxed)(environment, name, out);
}

int CallFunction(TVMFunctionHandle function, TVMValue* arguments, int* type_codes,
                 int num_arguments, TVMValue* result, int* result_code) {
  if (current_target != nullptr && current_target->functions != nullptr) {
    const int64_t index = current_target->functions->table().Find(function);
    if (index >= 0) {
      return Guarded([&] { return Launch(*current_target, index, arguments, num_arguments); });
    }
    if (index == DeviceFunctionTable::kSetDevice) {
      return Guarded([&] { return CheckDevice(*current_target, arguments); });
    }
  }
  return foreign_call.load(std::memory_order_relaxed)(function, arguments, type_codes,
                                                      num_arguments, result, result_code);
}

}  // namespace heteroplace::exec
