#include "parts/kernels/library_api.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "parts/kernels/nvidia_kernel.h"

namespace heteroplace::exec {

namespace {

constexpr size_t kMaxMessageBytes = 512;

std::string MendOf(const LibraryPlace& place) {
  const auto& [first, second] = place.files;
  return std::string("; run `pip install ") + first.wheel + "` (CUDA 12) or `pip install " +
         second.wheel + "` (CUDA 13), or place the model with " + place.option + "='off'";
}

/*! \brief The folder that NVIDIA's wheels share, if the CUDA runtime in use is of one. */
std::filesystem::path FolderOfWheels(const CudaRuntime& cuda) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(cuda.GetDeviceCount), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path().parent_path().parent_path();
}

}  // namespace

void* OpenLibrary(const CudaRuntime& cuda, const LibraryPlace& place) {
  const std::filesystem::path wheels = FolderOfWheels(cuda);
  std::vector<std::string> candidates;
  if (!wheels.empty()) {
    for (const LibraryFile& file : place.files) {
      const std::filesystem::path path = wheels / file.folder / "lib" / file.name;
      if (std::filesystem::exists(path)) candidates.push_back(path.string());
    }
  }
  for (const LibraryFile& file : place.files) candidates.emplace_back(file.name);
  std::string faults;
  for (size_t i = 0; i < candidates.size(); ++i) {
    // cuDNN has one name for both versions of CUDA.
    if (i > 0 && candidates[i] == candidates[i - 1]) continue;
    void* library = dlopen(candidates[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    faults += (faults.empty() ? "" : "; ") + std::string(dlerror());
  }
  throw Error(ErrorKind::kExecution,
              std::string(place.name) + " cannot be opened: " + faults + MendOf(place));
}

void* FindSymbol(void* library, const LibraryPlace& place, const char* name) {
  void* symbol = dlsym(library, name);
  if (symbol != nullptr) return symbol;
  throw Error(ErrorKind::kExecution,
              std::string(place.name) + " has no function " + name + MendOf(place));
}

std::string NvidiaLibrary::Describe(int status) const {
  const char* name = GetErrorString(status);
  std::string text = std::string(name == nullptr ? "unknown error" : name) + " (" + place->name +
                     " status " + std::to_string(status) + ")";
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
  const auto& [first, second] = place->files;
  const bool is_second = of_program / 10000 == second.major && first.major != second.major;
  throw Error(ErrorKind::kExecution, "the program's kernels were chosen for " + NameOf(of_program) +
                                         ", this machine has " + NameOf(version) +
                                         "; place the model again here, or run `pip install " +
                                         (is_second ? second : first).wheel +
                                         "==" + LibraryVersionText(of_program) + ".*`");
}

}  // namespace heteroplace::exec
