#include "exec/devices/tvm_abi.h"

#include <dlfcn.h>

#include <algorithm>
#include <new>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

template <typename Function>
void Find(void* library, const std::string& path, const char* name, Function* out) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) {
    throw Error(ErrorKind::kExecution, "'" + path + "' has no function " + name +
                                           "; give the path of the libtvm.so of a TVM 0.17");
  }
  *out = reinterpret_cast<Function>(symbol);
}

template <typename Function>
Function* InProcess(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/*! \brief What an exception of Python is, as `repr` says it; "" where there is no Python. */
std::string PythonText(void* exception) {
  auto* const take_lock = InProcess<int()>("PyGILState_Ensure");
  auto* const leave_lock = InProcess<void(int)>("PyGILState_Release");
  auto* const repr = InProcess<void*(void*)>("PyObject_Repr");
  auto* const as_utf8 = InProcess<const char*(void*)>("PyUnicode_AsUTF8");
  auto* const drop = InProcess<void(void*)>("Py_DecRef");
  auto* const clear = InProcess<void()>("PyErr_Clear");
  if (!take_lock || !leave_lock || !repr || !as_utf8 || !drop || !clear) return "";
  const int state = take_lock();
  std::string text;
  if (void* shown = repr(exception); shown != nullptr) {
    if (const char* utf8 = as_utf8(shown); utf8 != nullptr) text = utf8;
    drop(shown);
  }
  clear();  // of an exception that cannot be shown
  leave_lock(state);
  return text;
}

}  // namespace

std::string DeviceName(const DLDevice& device) {
  std::string kind = device.device_type == kDLCPU    ? "cpu"
                     : device.device_type == kDLCUDA ? "cuda"
                                                     : "type" + std::to_string(device.device_type);
  return kind + ":" + std::to_string(device.device_id);
}

std::string TypeName(const DLDataType& dtype) {
  if (dtype.code == kDLUInt && dtype.bits == 1) return "bool";
  const std::string bits = std::to_string(dtype.bits);
  switch (dtype.code) {
    case kDLInt:
      return "int" + bits;
    case kDLUInt:
      return "uint" + bits;
    case kDLFloat:
      return "float" + bits;
    case kDLBfloat:
      return "bfloat" + bits;
    case kDLBool:
      return "bool";
    default:
      return "code" + std::to_string(dtype.code) + "x" + bits;
  }
}

std::string DescribeTensor(const DLDataType& dtype, const std::vector<int64_t>& shape) {
  std::string text = TypeName(dtype) + " (";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + ")";
}

std::string TvmAbi::LastErrorLine() const {
  // Null in a thread that has had no error: a kernel may fail without leaving a message.
  std::string text;
  if (void* exception = GetLastPythonError(); exception != nullptr) {
    text = PythonText(exception);
    // A thread that ended with it would need Python then, which may have ended before.
    DropLastPythonError();
  } else if (const char* last = GetLastError(); last != nullptr) {
    text = last;
  }
  // TVM puts its own frames after the message; they say nothing of the model.
  text.resize(std::min(text.size(), text.find("Stack trace:")));
  size_t end = text.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return "no message";
  size_t begin = text.rfind('\n', end);
  begin = begin == std::string::npos ? 0 : begin + 1;
  begin = text.find_first_not_of(" \t", begin);
  return text.substr(begin, end - begin + 1);
}

void TvmAbi::LeaveError(const char* message) const noexcept {
  try {
    SetLastError(message);
  } catch (const std::bad_alloc&) {
  }
}

TvmAbi LoadTvmAbi(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(ErrorKind::kExecution, "cannot load TVM from '" + path + "': " + dlerror() +
                                           "; give the path of the libtvm.so in use");
  }
  TvmAbi abi{};
  abi.library = library;
  Find(library, path, "TVMModLoadFromFile", &abi.ModLoadFromFile);
  Find(library, path, "TVMModGetFunction", &abi.ModGetFunction);
  Find(library, path, "TVMModFree", &abi.ModFree);
  Find(library, path, "TVMObjectRetain", &abi.ObjectRetain);
  Find(library, path, "TVMFuncCall", &abi.FuncCall);
  Find(library, path, "TVMFuncFree", &abi.FuncFree);
  Find(library, path, "TVMFuncCreateFromCFunc", &abi.FuncCreateFromCFunc);
  Find(library, path, "TVMBackendGetFuncFromEnv", &abi.GetFuncFromEnv);
  Find(library, path, "TVMGetLastError", &abi.GetLastError);
  Find(library, path, "TVMGetLastPythonError", &abi.GetLastPythonError);
  Find(library, path, "TVMDropLastPythonError", &abi.DropLastPythonError);
  Find(library, path, "TVMAPISetLastError", &abi.SetLastError);
  Find(library, path, "TVMSetStream", &abi.SetStream);
  Find(library, path, "TVMBackendAllocWorkspace", &abi.AllocWorkspace);
  Find(library, path, "TVMBackendFreeWorkspace", &abi.FreeWorkspace);
  // A C++ function: it bounds the calling thread's pool before that pool is ever made.
  abi.SetMaxConcurrency = reinterpret_cast<void (*)(int)>(
      dlsym(library, "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"));
  return abi;
}

}  // namespace heteroplace::exec
