#include "bounds/module_trees.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace heteroplace::bounds {

namespace {

constexpr double kForbidden = 1e300;

}  // namespace

ModuleTrees::ModuleTrees(const model::Problem& problem, const decompose::Module& module)
    : problem_(problem),
      module_(module),
      num_inner_(module.has_exit ? module.num_tasks - 1 : module.num_tasks),
      num_readers_(module.num_tensors, 0),
      pair_rate_(module.num_memories * module.num_memories, 0.0),
      unit_rate_(module.num_devices, 0.0),
      memory_rate_(module.num_memories, 0.0) {
  for (int tensor = 0; tensor < module.num_tensors; ++tensor) {
    num_readers_[tensor] = std::max(1, static_cast<int>(module.readers[tensor].size()));
  }
  for (int task = 0; task < module.num_tasks; ++task) {
    for (int memory = 0; memory < problem.num_memories; ++memory) {
      int64_t bytes = module.weight_bytes[task];
      for (int tensor : module.makes[task]) {
        const bool is_set_aside = memory == problem.host && module.is_free_at_host[tensor] != 0;
        if (!is_set_aside) bytes += module.charged_bytes[tensor];
      }
      made_bytes_.push_back(static_cast<double>(bytes));
    }
  }
  reads_cut_.assign(module.num_tasks, 0);
  for (int tensor = 0; tensor < module.num_tensors; ++tensor) {
    if (module.is_from_cut[tensor] == 0) continue;
    for (int reader : module.readers[tensor]) reads_cut_[reader] = 1;
  }
  std::vector<uint8_t> is_taken(module.num_tasks, 0);
  for (int task = 0; task < num_inner_; ++task) {
    if (is_taken[task] == 0) Grow(task, is_taken);
  }
  std::unordered_map<std::string, size_t> known;
  std::vector<Tree> distinct;
  for (Tree& tree : trees_) {
    const auto [found, is_new] = known.emplace(Key(tree), distinct.size());
    instances_.push_back({tree.tasks, static_cast<int>(found->second)});
    if (is_new) {
      tree.offset = solution_.size();
      solution_.resize(solution_.size() + tree.tasks.size());
      distinct.push_back(std::move(tree));
    } else {
      ++distinct[found->second].count;
    }
  }
  trees_ = std::move(distinct);
}

void ModuleTrees::Grow(int root, std::vector<uint8_t>& is_taken) {
  Tree tree;
  tree.tasks.push_back(root);
  tree.edges.push_back({-1, false, {}});
  is_taken[root] = 1;
  for (size_t index = 0; index < tree.tasks.size(); ++index) {
    const int task = tree.tasks[index];
    const auto visit = [&](int other, bool is_from_parent) {
      if (other >= num_inner_ || is_taken[other] != 0) return;
      is_taken[other] = 1;
      Edge edge{static_cast<int>(index), is_from_parent, {}};
      const int producer = is_from_parent ? task : other;
      const int reader = is_from_parent ? other : task;
      for (int tensor : module_.makes[producer]) {
        const auto readers = module_.readers[tensor];
        if (std::find(readers.begin(), readers.end(), reader) != readers.end()) {
          edge.tensors.push_back(tensor);
        }
      }
      tree.tasks.push_back(other);
      tree.edges.push_back(std::move(edge));
    };
    for (int other : module_.successors[task]) visit(other, true);
    for (int other : module_.predecessors[task]) visit(other, false);
  }
  trees_.push_back(std::move(tree));
}

std::string ModuleTrees::Key(const Tree& tree) const {
  std::vector<int64_t> key;
  const auto add_tensor = [&](int tensor) {
    key.push_back(module_.tensor_bytes[tensor]);
    key.push_back(module_.charged_bytes[tensor]);
    key.push_back(num_readers_[tensor]);
    key.push_back(module_.is_free_at_host[tensor]);
  };
  for (size_t index = 0; index < tree.tasks.size(); ++index) {
    const int task = tree.tasks[index];
    key.push_back(module_.weight_bytes[task]);
    for (int device = 0; device < problem_.num_devices; ++device) {
      key.push_back(module_.Run(task, device));
    }
    key.push_back(tree.edges[index].parent);
    key.push_back(tree.edges[index].is_from_parent ? 1 : 0);
    for (int tensor : tree.edges[index].tensors) add_tensor(tensor);
    key.push_back(-2);
    for (int tensor : module_.makes[task]) {
      add_tensor(tensor);
      const auto readers = module_.readers[tensor];
      const bool is_for_exit = module_.has_exit && !readers.empty() && readers.back() == num_inner_;
      key.push_back(is_for_exit ? 1 : 0);
    }
    key.push_back(-3);
    for (int tensor : module_.reads[task]) {
      if (module_.is_from_cut[tensor] != 0) key.push_back(tensor);
    }
    key.push_back(-4);
  }
  return {reinterpret_cast<const char*>(key.data()), key.size() * sizeof(int64_t)};
}

void ModuleTrees::FindRates(const Prices& prices) {
  memory_rate_ = prices.memory;
  for (int device = 0; device < problem_.num_devices; ++device) {
    unit_rate_[device] = 0;
    for (int unit : problem_.device_units[device]) unit_rate_[device] += prices.resource[unit];
  }
  for (int pair = 0; pair < static_cast<int>(pair_rate_.size()); ++pair) {
    pair_rate_[pair] = 0;
    for (int resource : problem_.route_resources[pair]) {
      pair_rate_[pair] += prices.resource[resource];
    }
  }
}

double ModuleTrees::CopyCost(int tensor, int src, int dst) const {
  if (src == dst) return 0;
  const int64_t transfer = module_.Transfer(tensor, src, dst);
  if (transfer == model::kImpossible) return kForbidden;
  const bool is_set_aside = dst == problem_.host && module_.is_free_at_host[tensor] != 0;
  const double bytes = is_set_aside ? 0.0 : static_cast<double>(module_.charged_bytes[tensor]);
  return (pair_rate_[problem_.Pair(src, dst)] * static_cast<double>(transfer) +
          memory_rate_[dst] * bytes) *
         Share(tensor);
}

double ModuleTrees::TaskCost(int task, int device, int entry_memory, int exit, const Prices& prices,
                             const Scope& scope) const {
  if (module_.Run(task, device) == model::kImpossible || !Has(scope.devices, device))
    return kForbidden;
  const int memory = problem_.device_memory[device];
  if (entry_memory >= 0 && reads_cut_[task] != 0 && !Has(scope.memories, memory)) {
    return kForbidden;
  }
  const int late = Late(task, device, entry_memory);
  const double rate = unit_rate_[device] + (late < 0 ? 0.0 : prices.resource[late]);
  double cost =
      rate * static_cast<double>(module_.Run(task, device)) +
      prices.memory[memory] * made_bytes_[static_cast<size_t>(task) * module_.num_memories +
                                          static_cast<size_t>(memory)];
  if (exit < 0) return cost;
  for (int tensor : module_.makes[task]) {
    const auto readers = module_.readers[tensor];
    if (!readers.empty() && readers.back() == num_inner_) {
      cost += CopyCost(tensor, memory, problem_.device_memory[exit]);
    }
  }
  return cost;
}

bool ModuleTrees::Solve(const Prices& prices, const Scope& scope, int entry_memory, int exit,
                        Usage& use) {
  FindRates(prices);
  use.cost = 0;
  use.busy_ns.assign(static_cast<size_t>(problem_.num_resources + problem_.num_devices), 0.0);
  use.used.assign(module_.num_memories, 0.0);
  for (const Tree& tree : trees_) {
    if (!SolveTree(tree, prices, scope, entry_memory, exit, use)) return false;
  }
  return true;
}

bool ModuleTrees::SolveTree(const Tree& tree, const Prices& prices, const Scope& scope,
                            int entry_memory, int exit, Usage& use) {
  const size_t count = tree.tasks.size();
  const size_t width = module_.num_devices;
  cost_.resize(count * width);
  best_child_.resize(count * width);
  device_.resize(count);
  for (size_t index = 0; index < count; ++index) {
    for (size_t device = 0; device < width; ++device) {
      cost_[index * width + device] =
          TaskCost(tree.tasks[index], static_cast<int>(device), entry_memory, exit, prices, scope);
    }
  }
  for (size_t index = count; index-- > 1;) {  // From the leaves to the root.
    const Edge& edge = tree.edges[index];
    const double* child = cost_.data() + index * width;
    double* parent = cost_.data() + static_cast<size_t>(edge.parent) * width;
    for (size_t upper = 0; upper < width; ++upper) {
      if (parent[upper] >= kForbidden) continue;
      const int upper_memory = problem_.device_memory[upper];
      double least = kForbidden;
      for (size_t lower = 0; lower < width; ++lower) {
        if (child[lower] >= least) continue;
        const int lower_memory = problem_.device_memory[lower];
        double cost = child[lower];
        if (lower_memory != upper_memory) {
          for (int tensor : edge.tensors) {
            cost += edge.is_from_parent ? CopyCost(tensor, upper_memory, lower_memory)
                                        : CopyCost(tensor, lower_memory, upper_memory);
          }
        }
        if (cost < least) {
          least = cost;
          best_child_[index * width + upper] = static_cast<int>(lower);
        }
      }
      parent[upper] = std::min(kForbidden, parent[upper] + least);
    }
  }
  const auto root = std::min_element(cost_.begin(), cost_.begin() + static_cast<long>(width));
  if (*root >= kForbidden) return false;
  const double times = tree.count;
  use.cost += times * *root;
  device_[0] = static_cast<int>(root - cost_.begin());
  solution_[tree.offset] = static_cast<uint8_t>(device_[0]);
  AddTask(tree.tasks[0], device_[0], entry_memory, exit, times, use);
  for (size_t index = 1; index < count; ++index) {
    const Edge& edge = tree.edges[index];
    const int upper = device_[edge.parent];
    device_[index] = best_child_[index * width + static_cast<size_t>(upper)];
    solution_[tree.offset + index] = static_cast<uint8_t>(device_[index]);
    AddTask(tree.tasks[index], device_[index], entry_memory, exit, times, use);
    const int upper_memory = problem_.device_memory[upper];
    const int lower_memory = problem_.device_memory[device_[index]];
    for (int tensor : edge.tensors) {
      if (edge.is_from_parent) {
        AddCopy(tensor, upper_memory, lower_memory, times, use);
      } else {
        AddCopy(tensor, lower_memory, upper_memory, times, use);
      }
    }
  }
  return true;
}

void ModuleTrees::Apply(int tree, const std::vector<uint8_t>& solution,
                        std::span<int> device) const {
  const Instance& instance = instances_[tree];
  const size_t offset = trees_[instance.tree].offset;
  for (size_t index = 0; index < instance.tasks.size(); ++index) {
    device[instance.tasks[index]] = solution[offset + index];
  }
}

void ModuleTrees::AddTask(int task, int device, int entry_memory, int exit, double times,
                          Usage& use) const {
  const int late = Late(task, device, entry_memory);
  if (late >= 0) use.busy_ns[late] += times * static_cast<double>(module_.Run(task, device));
  const int memory = problem_.device_memory[device];
  for (int unit : problem_.device_units[device]) {
    use.busy_ns[unit] += times * static_cast<double>(module_.Run(task, device));
  }
  use.used[memory] +=
      times *
      made_bytes_[static_cast<size_t>(task) * module_.num_memories + static_cast<size_t>(memory)];
  if (exit < 0) return;
  for (int tensor : module_.makes[task]) {
    const auto readers = module_.readers[tensor];
    if (!readers.empty() && readers.back() == num_inner_) {
      AddCopy(tensor, memory, problem_.device_memory[exit], times, use);
    }
  }
}

void ModuleTrees::AddCopy(int tensor, int src, int dst, double times, Usage& use) const {
  if (src == dst) return;
  const double share = times * Share(tensor);
  const double transfer = static_cast<double>(module_.Transfer(tensor, src, dst));
  for (int resource : problem_.route_resources[problem_.Pair(src, dst)]) {
    use.busy_ns[resource] += share * transfer;
  }
  const bool is_set_aside = dst == problem_.host && module_.is_free_at_host[tensor] != 0;
  if (!is_set_aside) use.used[dst] += share * static_cast<double>(module_.charged_bytes[tensor]);
}

}  // namespace heteroplace::bounds
