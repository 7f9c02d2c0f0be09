#include "parts/hosts/transports/mpi_abi.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "support/error.h"
#include "support/own_folders.h"

namespace heteroplace::exec {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMpichName = "libmpi.so.12";
constexpr const char* kOpenMpiName = "libmpi.so.40";
constexpr const char* kAbiName = "libmpi_abi.so.1";

/*! \brief As long as any library's texts, in all of their versions. */
constexpr size_t kMaxText = 8192;

[[noreturn]] void RefuseLibrary(const std::string& text) {
  throw Error(ErrorKind::kExecution, text);
}

template <typename Function>
void FindFunction(void* library, const std::string& path, const char* name, Function* out) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr)
    RefuseLibrary("'" + path + "' has no function " + name + ": no MPI library");
  *out = reinterpret_cast<Function>(symbol);
}

void FindFunctions(void* library, MpiAbi* abi) {
  const auto find = [&](const char* name, auto* out) {
    FindFunction(library, abi->path, name, out);
  };
  find("MPI_Initialized", &abi->Initialized);
  find("MPI_Finalized", &abi->Finalized);
  find("MPI_Init_thread", &abi->Init_thread);
  find("MPI_Query_thread", &abi->Query_thread);
  find("MPI_Finalize", &abi->Finalize);
  find("MPI_Error_string", &abi->Error_string);
  find("MPI_Comm_dup", &abi->Comm_dup);
  find("MPI_Comm_free", &abi->Comm_free);
  find("MPI_Comm_rank", &abi->Comm_rank);
  find("MPI_Comm_size", &abi->Comm_size);
  find("MPI_Comm_test_inter", &abi->Comm_test_inter);
  find("MPI_Comm_set_errhandler", &abi->Comm_set_errhandler);
  find("MPI_Comm_get_attr", &abi->Comm_get_attr);
  find("MPI_Send_init", &abi->Send_init);
  find("MPI_Recv_init", &abi->Recv_init);
  find("MPI_Start", &abi->Start);
  find("MPI_Test", &abi->Test);
  find("MPI_Cancel", &abi->Cancel);
  find("MPI_Request_free", &abi->Request_free);
  find("MPI_Get_count", &abi->Get_count);
}

/*! \brief The first line of what a library says of itself: it may be called before MPI_Init. */
std::string FirstLineOfVersion(const MpiAbi& abi) {
  std::vector<char> text(kMaxText + 1, '\0');
  int length = 0;
  abi.Get_library_version(text.data(), &length);
  std::string line = text.data();
  line.resize(std::min(line.size(), line.find('\n')));
  return line;
}

/*! \brief The word after a prefix, without the signs around it; "" where the line is another's. */
std::string VersionAfter(const std::string& line, std::string_view prefix) {
  if (!line.starts_with(prefix)) return "";
  const size_t begin = line.find_first_not_of(" \t:v", prefix.size());
  if (begin == std::string::npos) return "";
  return line.substr(begin, line.find_first_of(" \t,", begin) - begin);
}

/*! \brief Which version of the standard's ABI the handles follow; 0: a library's own. */
int AbiVersion(void* library) {
  int (*get_version)(int*, int*) =
      reinterpret_cast<int (*)(int*, int*)>(dlsym(library, "MPI_Abi_get_version"));
  int major = 0;
  int minor = 0;
  if (get_version == nullptr || get_version(&major, &minor) != 0) return 0;
  return std::max(major, 0);  // -1: not these handles
}

void TakeMpich(MpiAbi* abi) {
  abi->comm_world = 0x44000000;
  abi->comm_null = 0x04000000;
  abi->byte = 0x4c00010d;
  abi->errors_return = 0x54000001;
  abi->tag_ub = 0x64400001;
  abi->any_source = -2;
  abi->thread_serialized = 2;
}

void TakeStandardAbi(MpiAbi* abi) {
  abi->comm_world = 0x101;
  abi->comm_null = 0x100;
  abi->byte = 0x247;
  abi->errors_return = 0x143;
  abi->tag_ub = 501;
  abi->any_source = -1;
  abi->thread_serialized = 2048;
}

/*! \brief Handles of Open MPI are addresses of its objects. */
void TakeOpenMpi(void* library, MpiAbi* abi) {
  const auto address = [&](const char* name) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr)
      RefuseLibrary("'" + abi->path + "' calls itself Open MPI but has no " + name);
    return reinterpret_cast<MpiHandle>(symbol);
  };
  abi->comm_world = address("ompi_mpi_comm_world");
  abi->comm_null = address("ompi_mpi_comm_null");
  abi->byte = address("ompi_mpi_byte");
  abi->errors_return = address("ompi_mpi_errors_return");
  abi->tag_ub = 0;
  abi->any_source = -1;
  abi->thread_serialized = 2;
}

/*! \brief The objects of this process whose file is called as an MPI library. */
std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> paths;
  const auto add = [](dl_phdr_info* info, size_t, void* out) {
    const std::string path = info->dlpi_name;
    if (fs::path(path).filename().string().starts_with("libmpi")) {
      static_cast<std::vector<std::string>*>(out)->push_back(path);
    }
    return 0;
  };
  dl_iterate_phdr(add, &paths);
  return paths;
}

bool IsStarted(const MpiAbi& abi) {
  int flag = 0;
  abi.Check(abi.Initialized(&flag), "whether MPI has begun");
  return flag != 0;
}

/*! \brief The library that this process has loaded, if it has; of several that which has begun. */
std::optional<MpiAbi> LibraryInProcess() {
  std::vector<std::string> paths;
  if (dlsym(RTLD_DEFAULT, "MPI_Get_library_version") != nullptr) paths.emplace_back("");
  for (const std::string& path : LoadedLibraries()) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    // Others are called alike: for Fortran, for C++.
    if (library != nullptr && dlsym(library, "MPI_Get_library_version") != nullptr) {
      paths.push_back(path);
    }
  }
  std::optional<MpiAbi> found;
  for (const std::string& path : paths) {
    MpiAbi abi = LoadMpiAbi(path);
    if (!found.has_value() || (IsStarted(abi) && !IsStarted(*found))) found = std::move(abi);
  }
  return found;
}

/*! \brief Paths and names to try, in this order. */
std::vector<std::string> Candidates() {
  std::vector<const char*> names = {kMpichName, kOpenMpiName, kAbiName};
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) std::swap(names[0], names[1]);
  std::vector<std::string> candidates;
  for (const char* name : names) {
    for (const fs::path& folder : OwnFolders()) {
      // From `bin` and from `lib/python3.x/site-packages/heteroplace`.
      for (const char* way : {"../lib", "../../.."}) {
        std::error_code error;
        const fs::path file = fs::canonical(folder / way / name, error);
        if (!error) candidates.push_back(file.string());
      }
    }
    candidates.emplace_back(name);
  }
  return candidates;
}

// What launchers write: Open MPI, MPICH and its kin, and Slurm, whose count of tasks says nothing
// where no rank is written beside it: it starts programs that are alone, too.
constexpr std::initializer_list<const char*> kSizes = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                       "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"};
constexpr std::initializer_list<const char*> kRanks = {"OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                                       "PMIX_RANK"};

/*! \brief The first of some variables that is a number; none: there is none. */
std::optional<int> NumberIn(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    const char* text = std::getenv(variable);
    if (text == nullptr) continue;
    int number = 0;
    const char* end = text + std::strlen(text);
    if (std::from_chars(text, end, number).ptr == end && end != text) return number;
  }
  return {};
}

}  // namespace

void MpiAbi::Check(int code, const std::string& what) const {
  if (code == 0) return;  // MPI_SUCCESS in every library
  std::vector<char> text(kMaxText + 1, '\0');
  int length = 0;
  if (Error_string(code, text.data(), &length) != 0) text[0] = '\0';
  std::string said = text[0] != '\0' ? text.data() : "error " + std::to_string(code);
  std::ranges::replace(said, '\n', ' ');  // MPICH tells who called whom, line by line
  RefuseLibrary(what + ": " + name + " says: " + said);
}

MpiAbi LoadMpiAbi(const std::string& path) {
  // Stays loaded: MPI has threads and handlers of its own until the process ends.
  void* library = dlopen(path.empty() ? nullptr : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) RefuseLibrary(dlerror());  // it names the file
  MpiAbi abi;
  abi.path = path.empty() ? "this process" : path;
  // First of all: a library of another family lacks other things, too, and is told by its name.
  FindFunction(library, abi.path, "MPI_Get_library_version", &abi.Get_library_version);
  const std::string line = FirstLineOfVersion(abi);
  const std::string mpich = VersionAfter(line, "MPICH Version");
  const std::string open_mpi = VersionAfter(line, "Open MPI");
  if (const int version = AbiVersion(library); version != 0) {
    if (version != 1)
      RefuseLibrary("'" + abi.path + "' has version " + std::to_string(version) +
                    " of the ABI of MPI; expected version 1");
    abi.name = (!mpich.empty() ? "MPICH " + mpich : line) + " by the ABI of MPI 5";
    TakeStandardAbi(&abi);
  } else if (!mpich.empty()) {
    abi.name = "MPICH " + mpich;
    TakeMpich(&abi);
  } else if (!open_mpi.empty()) {
    abi.name = "Open MPI " + open_mpi;
    TakeOpenMpi(library, &abi);
  } else {
    RefuseLibrary(
        "'" + abi.path + "' is '" + line +
        "', of which the handles are not known; expected MPICH, Open MPI or a library with the "
        "ABI of MPI 5 (libmpi_abi.so)");
  }
  FindFunctions(library, &abi);
  return abi;
}

MpiAbi FindMpi(const std::string& given) {
  if (!given.empty()) return LoadMpiAbi(given);
  if (std::optional<MpiAbi> loaded = LibraryInProcess(); loaded.has_value()) return *loaded;
  std::string why;
  for (const std::string& candidate : Candidates()) {
    try {
      return LoadMpiAbi(candidate);
    } catch (const Error& error) {
      why += (why.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  RefuseLibrary(
      "no MPI library is found: " + why +
      "; install one (pip install 'heteroplace[mpi]'), name its folder in LD_LIBRARY_PATH, or "
      "give its path");
}

int LaunchedRanks() { return NumberIn(kRanks).has_value() ? NumberIn(kSizes).value_or(1) : 1; }

bool IsFirstLaunched() { return NumberIn(kRanks).value_or(0) == 0; }

}  // namespace heteroplace::exec
