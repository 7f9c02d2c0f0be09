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
        if (std::ranges::find(readers, reader) != readers.end()) {
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

std::vector<bool> ModuleTrees::LateStarts(const std::function<bool(int, int)>& is_late) const {
  const size_t width = module_.num_devices;
  std::vector<bool> found(solution_.size() * width, true);
  for (const Instance& instance : instances_) {
    const size_t offset = trees_[instance.tree].offset;
    for (size_t index = 0; index < instance.tasks.size(); ++index) {
      for (size_t device = 0; device < width; ++device) {
        const size_t at = (offset + index) * width + device;
        // Equal trees may differ in what was left out of them.
        if (found[at]) found[at] = is_late(instance.tasks[index], static_cast<int>(device));
      }
    }
  }
  return found;
}

void ModuleTrees::FindRates(const Prices& prices) {
  memory_rate_ = prices.memory;
  const size_t pairs = module_.num_memories * module_.num_memories;
  const auto phases = static_cast<size_t>(num_phases_);
  unit_rate_.assign(phases * module_.num_devices, 0.0);
  pair_rate_.assign(phases * pairs, 0.0);
  for (size_t phase = 0; phase < phases; ++phase) {
    const double* price = prices.resource.data() + Offset(static_cast<int>(phase));
    for (int device = 0; device < problem_.num_devices; ++device) {
      double& rate = unit_rate_[phase * module_.num_devices + static_cast<size_t>(device)];
      for (int unit : problem_.device_units[device]) rate += price[unit];
    }
    for (size_t pair = 0; pair < pairs; ++pair) {
      double& rate = pair_rate_[phase * pairs + pair];
      for (int resource : problem_.route_resources[static_cast<int>(pair)]) {
        rate += price[resource];
      }
    }
  }
}

double ModuleTrees::CopyCost(int tensor, int src, int dst, int first, int last) const {
  if (src == dst) return 0;
  const int64_t transfer = module_.Transfer(tensor, src, dst);
  if (transfer == model::kImpossible) return kForbidden;
  const bool is_set_aside = dst == problem_.host && module_.is_free_at_host[tensor] != 0;
  const double bytes = is_set_aside ? 0.0 : static_cast<double>(module_.charged_bytes[tensor]);
  const int pair = problem_.Pair(src, dst);
  const int phase = first == last ? first : Cheaper(pair);
  const double rate =
      pair_rate_[static_cast<size_t>(phase) * module_.num_memories * module_.num_memories +
                 static_cast<size_t>(pair)];
  return (rate * static_cast<double>(transfer) + memory_rate_[dst] * bytes) * Share(tensor);
}

double ModuleTrees::TaskCost(int task, int device, int phase, int entry_memory, int exit,
                             const Prices& prices, const Scope& scope) const {
  if (module_.Run(task, device) == model::kImpossible || !Has(scope.devices, device))
    return kForbidden;
  const int memory = problem_.device_memory[device];
  if (entry_memory >= 0 && reads_cut_[task] != 0 && !Has(scope.memories, memory)) {
    return kForbidden;
  }
  const int late = Late(task, device, entry_memory);
  const double unit_rate =
      unit_rate_[static_cast<size_t>(phase) * module_.num_devices + static_cast<size_t>(device)];
  const double rate = unit_rate + (late < 0 ? 0.0 : prices.resource[late]);
  double cost =
      rate * static_cast<double>(module_.Run(task, device)) +
      prices.memory[memory] * made_bytes_[static_cast<size_t>(task) * module_.num_memories +
                                          static_cast<size_t>(memory)];
  if (exit < 0) return cost;
  for (int tensor : module_.makes[task]) {
    const auto readers = module_.readers[tensor];
    if (!readers.empty() && readers.back() == num_inner_) {
      cost += CopyCost(tensor, memory, problem_.device_memory[exit], phase, num_phases_ - 1);
    }
  }
  return cost;
}

bool ModuleTrees::Solve(const Prices& prices, const Scope& scope, int entry_memory, int exit,
                        Usage& use) {
  num_phases_ = scope.num_phases();
  FindRates(prices);
  use.cost = 0;
  use.busy_ns.assign(prices.resource.size(), 0.0);
  use.used.assign(module_.num_memories, 0.0);
  for (const Tree& tree : trees_) {
    if (!SolveTree(tree, prices, scope, entry_memory, exit, use)) return false;
  }
  return true;
}

/*! \brief Adds to what each state of a parent costs the least that a child then costs. */
void ModuleTrees::SendUp(const Tree& tree, size_t index) {
  const int phases = num_phases_, states = problem_.num_devices * phases;
  const auto width = static_cast<size_t>(states);
  const Edge& edge = tree.edges[index];
  const double* child = cost_.data() + index * width;
  double* parent = cost_.data() + static_cast<size_t>(edge.parent) * width;
  for (int upper = 0; upper < states; ++upper) {
    if (parent[upper] >= kForbidden) continue;
    const int upper_memory = problem_.device_memory[upper / phases], upper_phase = upper % phases;
    double least = kForbidden;
    for (int lower = 0; lower < states; ++lower) {
      if (child[lower] >= least) continue;
      const int lower_phase = lower % phases;
      // What reads a tensor is not in an earlier phase than what makes it.
      const bool is_in_order =
          edge.is_from_parent ? upper_phase <= lower_phase : lower_phase <= upper_phase;
      if (!is_in_order) continue;
      const int lower_memory = problem_.device_memory[lower / phases];
      double cost = child[lower];
      if (lower_memory != upper_memory) {
        for (int tensor : edge.tensors) {
          cost += edge.is_from_parent
                      ? CopyCost(tensor, upper_memory, lower_memory, upper_phase, lower_phase)
                      : CopyCost(tensor, lower_memory, upper_memory, lower_phase, upper_phase);
        }
      }
      if (cost < least) {
        least = cost;
        best_child_[index * width + static_cast<size_t>(upper)] = lower;
      }
    }
    parent[upper] = std::min(kForbidden, parent[upper] + least);
  }
}

bool ModuleTrees::SolveTree(const Tree& tree, const Prices& prices, const Scope& scope,
                            int entry_memory, int exit, Usage& use) {
  const size_t count = tree.tasks.size();
  const int phases = num_phases_, states = problem_.num_devices * phases;
  const auto width = static_cast<size_t>(states);
  cost_.resize(count * width);
  best_child_.resize(count * width);
  state_.resize(count);
  for (size_t index = 0; index < count; ++index) {
    for (int state = 0; state < states; ++state) {
      const int device = state / phases, phase = state % phases;
      const size_t at = (tree.offset + index) * module_.num_devices + static_cast<size_t>(device);
      const bool is_too_early = phase + 1 < phases && scope.is_late[at];
      cost_[index * width + static_cast<size_t>(state)] =
          is_too_early
              ? kForbidden
              : TaskCost(tree.tasks[index], device, phase, entry_memory, exit, prices, scope);
    }
  }
  for (size_t index = count; index-- > 1;) SendUp(tree, index);  // From the leaves to the root.
  const auto root = std::min_element(cost_.begin(), cost_.begin() + states);
  if (*root >= kForbidden) return false;
  const double times = tree.count;
  use.cost += times * *root;
  state_[0] = static_cast<int>(root - cost_.begin());
  solution_[tree.offset] = static_cast<uint8_t>(state_[0] / phases);
  AddTask(tree.tasks[0], state_[0], entry_memory, exit, times, use);
  for (size_t index = 1; index < count; ++index) {
    const Edge& edge = tree.edges[index];
    const int upper = state_[edge.parent];
    const int lower = best_child_[index * width + static_cast<size_t>(upper)];
    state_[index] = lower;
    solution_[tree.offset + index] = static_cast<uint8_t>(lower / phases);
    AddTask(tree.tasks[index], lower, entry_memory, exit, times, use);
    const int upper_memory = problem_.device_memory[upper / phases];
    const int lower_memory = problem_.device_memory[lower / phases];
    for (int tensor : edge.tensors) {
      if (edge.is_from_parent) {
        AddCopy(tensor, upper_memory, lower_memory, upper % phases, lower % phases, times, use);
      } else {
        AddCopy(tensor, lower_memory, upper_memory, lower % phases, upper % phases, times, use);
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

void ModuleTrees::AddTask(int task, int state, int entry_memory, int exit, double times,
                          Usage& use) const {
  const int device = state / num_phases_, phase = state % num_phases_;
  const int late = Late(task, device, entry_memory);
  const double busy = times * static_cast<double>(module_.Run(task, device));
  if (late >= 0) use.busy_ns[late] += busy;
  const int memory = problem_.device_memory[device];
  double* of_phase = use.busy_ns.data() + Offset(phase);
  for (int unit : problem_.device_units[device]) of_phase[unit] += busy;
  use.used[memory] +=
      times *
      made_bytes_[static_cast<size_t>(task) * module_.num_memories + static_cast<size_t>(memory)];
  if (exit < 0) return;
  for (int tensor : module_.makes[task]) {
    const auto readers = module_.readers[tensor];
    if (!readers.empty() && readers.back() == num_inner_) {
      AddCopy(tensor, memory, problem_.device_memory[exit], phase, num_phases_ - 1, times, use);
    }
  }
}

void ModuleTrees::AddCopy(int tensor, int src, int dst, int first, int last, double times,
                          Usage& use) const {
  if (src == dst) return;
  const int pair = problem_.Pair(src, dst);
  const double share = times * Share(tensor);
  const double transfer = static_cast<double>(module_.Transfer(tensor, src, dst));
  double* of_phase = use.busy_ns.data() + Offset(first == last ? first : Cheaper(pair));
  for (int resource : problem_.route_resources[pair]) of_phase[resource] += share * transfer;
  const bool is_set_aside = dst == problem_.host && module_.is_free_at_host[tensor] != 0;
  if (!is_set_aside) use.used[dst] += share * static_cast<double>(module_.charged_bytes[tensor]);
}

}  // namespace heteroplace::bounds
