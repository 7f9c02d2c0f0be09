#include "exec/team/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace heteroplace::exec {

namespace {

/*! \brief Cores of one group's limit; `none` if it has no limit, or none that can be read. */
double GroupCores(const std::string& folder, double none) {
  double quota = 0, period = 0;
  std::ifstream both(folder + "/cpu.max");  // version 2: "max 100000" is no limit
  if (both >> quota >> period && period > 0) return quota / period;
  std::ifstream first(folder + "/cpu.cfs_quota_us"), second(folder + "/cpu.cfs_period_us");
  if (first >> quota && second >> period && quota > 0 && period > 0) return quota / period;
  return none;
}

/*! \brief Least limit of processor time of the groups that this process is in, in cores. */
double QuotaCores(const std::string& system, double none) {
  double cores = none;
  std::ifstream groups(system + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:path; version 2 has no controllers.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers.find("cpu") == std::string::npos) continue;
    const std::string root =
        system + "/sys/fs/cgroup" + (controllers.empty() ? "" : "/" + controllers);
    // A container may see its own group at the root; a limit holds for all groups below it.
    std::string path = line.substr(second + 1);
    for (;;) {
      cores = std::min(cores, GroupCores(root + path, none));
      const size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return cores;
}

/*! \brief The first word of a file; "" if it cannot be read. */
std::string FirstWord(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

/*! \brief The number that a file begins with; -1: none. */
int FirstNumber(const std::string& path) {
  int number = -1;
  return std::ifstream(path) >> number ? number : -1;
}

}  // namespace

int CacheDomain(int core, const std::string& root) {
  int last_level = 0, domain = -1;
  const std::string folder = root + "/cpu" + std::to_string(core) + "/cache/index";
  for (int index = 0;; ++index) {
    const std::string cache = folder + std::to_string(index);
    const int level = FirstNumber(cache + "/level");
    if (level <= 0) return domain;
    if (level < last_level || FirstWord(cache + "/type") == "Instruction") continue;
    const int first = FirstNumber(cache + "/shared_cpu_list");  // "0-3,8": ascending
    if (first < 0) continue;
    last_level = level;
    domain = first;
  }
}

CoreTable& Cores() {
  static constinit CoreTable table{};  // zeros; never destroyed while workers run
  return table;
}

void CoreTable::Refresh(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Of the process's first thread: the caller may be pinned to one core, the workers are not.
  const bool is_known = sched_getaffinity(getpid(), sizeof(set), &set) == 0;
  const int allowed =
      is_known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  const int quota = static_cast<int>(QuotaCores(root, allowed));
  usable.store(std::max(1, std::min(allowed, quota)));
}

void CoreTable::Forget() {
  for (std::atomic<int32_t>& core : awake) core.store(0);
  all_awake.store(0);
}

}  // namespace heteroplace::exec
