#include "search/branches.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace heteroplace {

namespace {

constexpr size_t kLimits[] = {2, 3, 4, 6, 8, 16, 32};

/*! \brief Root of a task in a forest of sets, with path halving. */
int Find(std::vector<int>& parent, int task) {
  while (parent[task] != task) {
    parent[task] = parent[parent[task]];
    task = parent[task];
  }
  return task;
}

}  // namespace

Csr FindBranches(const Piece& piece) {
  Csr branches;
  std::set<std::vector<int>> known;
  const int count = piece.num_tasks;
  std::vector<int> parent(count);
  for (size_t limit : kLimits) {
    const auto is_hub = [&](int task) {
      return std::max(piece.predecessors[task].size(), piece.successors[task].size()) >= limit;
    };
    for (int task = 0; task < count; ++task) parent[task] = task;
    for (int task = 0; task < count; ++task) {
      if (is_hub(task)) continue;
      for (int after : piece.successors[task]) {
        if (!is_hub(after)) parent[Find(parent, after)] = Find(parent, task);
      }
    }
    std::map<int, std::vector<int>> members;
    for (int task = 0; task < count; ++task) {
      if (!is_hub(task)) members[Find(parent, task)].push_back(task);
    }
    for (auto& [root, tasks] : members) {
      const bool is_useful = tasks.size() >= 2 && 2 * tasks.size() <= static_cast<size_t>(count);
      if (is_useful && known.insert(tasks).second) branches.AddRow(tasks);
    }
  }
  return branches;
}

}  // namespace heteroplace
