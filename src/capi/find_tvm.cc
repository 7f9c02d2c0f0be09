#include "capi/find_tvm.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "capi/status.h"
#include "exec/devices/tvm_abi.h"
#include "support/error.h"
#include "support/own_folders.h"

namespace heteroplace::capi {

namespace {

namespace fs = std::filesystem;

/*! \brief The runtime alone is a hundredth of the compiler's size. */
constexpr const char* kNames[] = {"libtvm_runtime.so", "libtvm.so"};

/*! \brief The packages of the Python environments in a folder `lib`. */
std::vector<fs::path> PackageFolders(const fs::path& lib) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(lib, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with("python3")) {
      found.push_back(at->path() / "site-packages" / "tvm");
    }
  }
  std::ranges::sort(found);
  return found;
}

/*! \brief Files that exist, in the order of the search. */
std::vector<fs::path> Candidates(const std::vector<fs::path>& folders) {
  std::vector<fs::path> places;
  for (const fs::path& folder : folders) {
    const fs::path lib = folder.parent_path() / "lib";
    places.insert(places.end(), {folder, lib});
    // A program lies in `bin` of an environment, the library in `lib`.
    for (const fs::path& packages : PackageFolders(lib)) places.push_back(packages);
  }
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::path& place : places) {
    for (const char* name : kNames) {
      // Resolved: its own libraries are found beside the file, not beside a link to it.
      const fs::path file = fs::canonical(place / name, error);
      const bool is_new = std::ranges::find(files, file) == files.end();
      if (!error && is_new) files.push_back(file);
    }
  }
  return files;
}

/*! \brief Whether the library can be used; else adds why not. */
bool Loads(const std::string& path, std::string* why) {
  if (!why->empty()) *why += "; ";
  // Stays loaded: code that TVM has started may run until the process ends.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    *why += dlerror();  // it names the file
    return false;
  }
  try {
    exec::LoadTvmAbi(path);
    return true;
  } catch (const Error& error) {
    *why += error.what();
    return false;
  }
}

}  // namespace

std::string FindTvm(const std::string& given) {
  constexpr char kMend[] =
      "; pass the path of the libtvm_runtime.so or libtvm.so of a TVM 0.17 (`tvm_library`, "
      "--tvm-library), put it beside the program, or name its folder in LD_LIBRARY_PATH";
  std::string why;
  if (!given.empty()) {
    std::error_code error;
    const fs::path file = fs::canonical(given, error);
    const std::string path = error ? given : file.string();
    if (Loads(path, &why)) return path;
    throw Fault(HETEROPLACE_NO_TVM, why + kMend);
  }
  const std::vector<fs::path> folders = OwnFolders();
  for (const fs::path& file : Candidates(folders)) {
    if (Loads(file.string(), &why)) return file.string();
  }
  for (const char* name : kNames) {
    if (Loads(name, &why)) return name;
  }
  std::string places;
  for (const fs::path& folder : folders) places += (places.empty() ? "" : ", ") + folder.string();
  throw Fault(HETEROPLACE_NO_TVM,
              "TVM's library is neither beside the program (" + places +
                  ": there, in ../lib, in "
                  "the Python environment around it) nor where the loader looks: " +
                  why + kMend);
}

}  // namespace heteroplace::capi
