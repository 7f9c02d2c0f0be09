#include "exec/devices/libraries/library_api.h"

#include <dlfcn.h>

#include <filesystem>

#include "exec/devices/libraries/library_kernel.h"

namespace heteroplace::exec {

namespace {

constexpr size_t kMaxMessageBytes = 512;

std::string MendOf(const LibraryPlace& place) {
  return std::string("; run `pip install ") + place.wheel + "`, or place the model with " +
         place.option + "='off'";
}

std::string PathInWheels(const CudaRuntime& cuda, const LibraryPlace& place) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(cuda.GetDeviceCount), &info) == 0) return "";
  const std::filesystem::path runtime(info.dli_fname);
  const std::filesystem::path packages = runtime.parent_path().parent_path().parent_path();
  return (packages / place.folder / "lib" / place.file).string();
}

}  // namespace

void* OpenLibrary(const CudaRuntime& cuda, const LibraryPlace& place) {
  const std::string in_wheels = PathInWheels(cuda, place);
  void* library = in_wheels.empty() ? nullptr : dlopen(in_wheels.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(place.file, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  throw Error(ErrorKind::kExecution,
              std::string(place.name) + " cannot be opened: " + dlerror() + MendOf(place));
}

void* FindSymbol(void* library, const LibraryPlace& place, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol != nullptr) return symbol;
  throw Error(ErrorKind::kExecution,
              std::string(place.file) + " has no function " + name + MendOf(place));
}

std::string NvidiaLibrary::Describe(int status) const {
  const char* name = GetErrorString(status);
  const std::string text = std::string(name == nullptr ? "unknown error" : name) + " (" +
                           place->name + " status " + std::to_string(status) + ")";
  if (GetLastErrorString == nullptr) return text;
  char message[kMaxMessageBytes] = {};
  GetLastErrorString(message, sizeof(message));
  message[sizeof(message) - 1] = '\0';
  const std::string more(message);
  return more.empty() ? text : text + ": " + more;
}

std::string NvidiaLibrary::NameOf(int64_t version) const {
  return std::string(place->name) + " " + LibraryVersionText(version);
}

void NvidiaLibrary::CheckVersion(int64_t of_program) const {
  const auto version = static_cast<int64_t>(GetVersion());
  if (version == of_program) return;
  throw Error(ErrorKind::kExecution, "the program's kernels were chosen for " + NameOf(of_program) +
                                         ", this machine has " + NameOf(version) +
                                         "; place the model again here, or run `pip install " +
                                         place->wheel + "==" + LibraryVersionText(of_program) +
                                         ".*`");
}

}  // namespace heteroplace::exec
