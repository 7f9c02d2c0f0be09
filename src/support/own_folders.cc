#include "support/own_folders.h"

#include <dlfcn.h>

#include <algorithm>
#include <system_error>

namespace heteroplace {

namespace fs = std::filesystem;

std::vector<fs::path> OwnFolders() {
  std::vector<fs::path> folders;
  std::error_code error;
  const auto add = [&](const fs::path& file) {
    const fs::path real = fs::canonical(file, error);
    if (error) return;
    const fs::path folder = real.parent_path();
    if (std::ranges::find(folders, folder) == folders.end()) {
      folders.push_back(folder);
    }
  };
  Dl_info info;
  const bool is_known = dladdr(reinterpret_cast<const void*>(&OwnFolders), &info) != 0;
  // Of a program the loader knows what it was called by, which may be no path.
  if (is_known && info.dli_fname != nullptr && info.dli_fname[0] == '/') add(info.dli_fname);
  add("/proc/self/exe");
  return folders;
}

}  // namespace heteroplace
