#include "search/branches.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace heteroplace::search {

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

/*! \brief What alike branches share: times, sizes and numbers of readers, task by task. */
std::vector<int64_t> Signature(const decompose::Module& module, std::span<const int> tasks) {
  std::vector<int64_t> signature;
  for (int task : tasks) {
    const auto row = module.run_ns.begin() +
                     static_cast<std::ptrdiff_t>(static_cast<size_t>(task) * module.num_devices);
    signature.insert(signature.end(), row, row + static_cast<std::ptrdiff_t>(module.num_devices));
    signature.push_back(module.weight_bytes[task]);
    for (int tensor : module.makes[task]) {
      signature.push_back(module.tensor_bytes[tensor]);
      signature.push_back(static_cast<int64_t>(module.readers[tensor].size()));
    }
    signature.push_back(-static_cast<int64_t>(module.predecessors[task].size()) - 2);
  }
  return signature;
}

}  // namespace

Branches FindBranches(const decompose::Module& module) {
  Branches branches;
  std::set<std::vector<int>> known;
  const int count = module.num_tasks;
  std::vector<int> parent(count);
  for (size_t limit : kLimits) {
    const auto is_hub = [&](int task) {
      return std::max(module.predecessors[task].size(), module.successors[task].size()) >= limit;
    };
    for (int task = 0; task < count; ++task) parent[task] = task;
    for (int task = 0; task < count; ++task) {
      if (is_hub(task)) continue;
      for (int after : module.successors[task]) {
        if (!is_hub(after)) parent[Find(parent, after)] = Find(parent, task);
      }
    }
    std::map<int, std::vector<int>> members;
    for (int task = 0; task < count; ++task) {
      if (!is_hub(task)) members[Find(parent, task)].push_back(task);
    }
    for (auto& [root, tasks] : members) {
      const bool is_useful = tasks.size() >= 2 && 2 * tasks.size() <= static_cast<size_t>(count);
      if (is_useful && known.insert(tasks).second) branches.tasks.AddRow(tasks);
    }
  }
  std::map<std::vector<int64_t>, int> kinds;
  std::vector<std::vector<int>> members;
  for (int branch = 0; branch < branches.tasks.num_rows(); ++branch) {
    const int kind =
        kinds.emplace(Signature(module, branches.tasks[branch]), static_cast<int>(kinds.size()))
            .first->second;
    if (kind == static_cast<int>(members.size())) members.emplace_back();
    branches.kind.push_back(kind);
    members[kind].push_back(branch);
  }
  for (const auto& row : members) branches.of_kind.AddRow(row);
  return branches;
}

}  // namespace heteroplace::search
