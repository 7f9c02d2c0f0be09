#include "bounds/module_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bounds/head_tail_bound.h"
#include "bounds/simplex.h"

namespace heteroplace::bounds {

namespace {

constexpr int kMaxDevicesToTry = 4;
constexpr double kMemory = 0.97;      // weight of a placement met one iteration before
constexpr int kPatience = 6;          // iterations without gain before the step is halved
constexpr int64_t kHeadTailWork = 8;  // what the head-tail bound of a task costs, in looks at it
constexpr double kFar = 1e300;

uint32_t FirstOnes(int count) { return count == 0 ? 0 : ~0U >> (32 - count); }

}  // namespace

ModuleBound::ModuleBound(const model::Problem& problem, const decompose::Module& module,
                         bool keeps_samples)
    : problem_(problem),
      module_(module),
      trees_(problem, module),
      is_enumerable_(problem.num_devices <= kMaxDevicesToTry),
      keeps_samples_(keeps_samples),
      is_copying_(static_cast<size_t>(problem.num_resources), false),
      pairs_((module.num_devices + 1) * (module.num_devices + 1)) {
  for (int resource : problem.route_resources.values) is_copying_[resource] = true;
  for (int tensor = 0; tensor < module.num_tensors; ++tensor) {
    if (module.is_from_cut[tensor] != 0) cut_tensors_.push_back(tensor);
  }
}

void ModuleBound::Prepare(int entry, int exit, Pair& pair) {
  pair.is_ready = true;
  pair.used.assign(module_.num_memories, 0.0);
  if (trees_.num_inner() == 0) return;
  const uint32_t all_devices = FirstOnes(problem_.num_devices);
  const uint32_t all_memories = FirstOnes(problem_.num_memories);
  if (!is_enumerable_) {
    AddCase(entry, exit, {all_devices, all_memories}, false, pair);
    return;
  }
  const uint32_t home = entry < 0 ? 0 : 1U << problem_.device_memory[entry];
  for (uint32_t devices = 1; devices <= all_devices; ++devices) {
    uint32_t memories = 0;
    for (int device = 0; device < problem_.num_devices; ++device) {
      if (Has(devices, device)) memories |= 1U << problem_.device_memory[device];
    }
    if (entry < 0) {
      AddCase(entry, exit, {devices, all_memories}, true, pair);
      continue;
    }
    // Every set of other memories in use that receive what the cut made.
    const uint32_t others = memories & ~home;
    for (uint32_t part = others;; part = (part - 1) & others) {
      AddCase(entry, exit, {devices, part | home}, true, pair);
      if (part == 0) break;
    }
  }
}

bool ModuleBound::AddCase(int entry, int exit, const Scope& scope, bool is_exact, Pair& pair) {
  work_ -= kHeadTailWork * trees_.num_inner();
  const HeadTailBound head_tail(problem_, module_, scope, entry, exit);
  const auto resources = static_cast<size_t>(problem_.num_resources + problem_.num_devices);
  Case one{scope, std::vector<double>(resources, 0.0), 0, std::vector<double>(resources, 0.0)};
  std::vector<double> release(resources, kFar), tail(resources, kFar);
  for (int task = 0; task < trees_.num_inner(); ++task) {
    double path = kFar;
    for (int device : module_.allowed[task]) {
      const double start = head_tail.start(task, device), rest = head_tail.rest(task, device);
      if (start >= kFar || rest >= kFar) continue;
      path = std::min(path, start + static_cast<double>(module_.Run(task, device)) + rest);
      for (int unit : problem_.device_units[device]) {
        release[unit] = std::min(release[unit], start);
        tail[unit] = std::min(tail[unit], rest);
      }
    }
    if (path >= kFar) return false;
    one.path_ns = std::max(one.path_ns, path);
  }
  double used_units = 0;
  for (int device = 0; device < problem_.num_devices; ++device) {
    for (int unit : problem_.device_units[device]) {
      if (!Has(scope.devices, device) || release[unit] >= kFar) continue;
      // A unit that copies occupy too may serve them before its first run and after its last one.
      if (is_exact && !is_copying_[unit]) one.idle_ns[unit] = release[unit] + tail[unit];
      if (one.resource[unit] == 0) used_units += 1;
      one.resource[unit] = 1;
    }
  }
  if (is_exact) {
    // The set is exactly what is used: a device that no task can use makes it another set.
    for (int device = 0; device < problem_.num_devices; ++device) {
      for (int unit : problem_.device_units[device]) {
        if (Has(scope.devices, device) && release[unit] >= kFar) return false;
      }
    }
  }
  if (is_exact && entry >= 0 && !AddLate(entry, head_tail, one)) return false;
  for (double& price : one.resource) price /= used_units;
  pair.cases.push_back(std::move(one));
  return true;
}

/*! \brief Releases of tasks that read what the cut made and was copied; false: there are none. */
bool ModuleBound::AddLate(int entry, const HeadTailBound& head_tail, Case& one) const {
  const int home = problem_.device_memory[entry];
  for (int memory = 0; memory < problem_.num_memories; ++memory) {
    if (memory == home || !Has(one.scope.memories, memory)) continue;
    int num_devices = 0, user = -1;
    double release = kFar, tail = kFar, path = kFar;
    for (int device = 0; device < problem_.num_devices; ++device) {
      if (problem_.device_memory[device] != memory || !Has(one.scope.devices, device)) continue;
      for (int task = 0; task < trees_.num_inner(); ++task) {
        const double start = head_tail.start(task, device), rest = head_tail.rest(task, device);
        if (!trees_.ReadsCut(task) || start >= kFar || rest >= kFar) continue;
        release = std::min(release, start);
        tail = std::min(tail, rest);
        path = std::min(path, start + static_cast<double>(module_.Run(task, device)) + rest);
        if (user != device) ++num_devices;
        user = device;
      }
    }
    // The memory is one that reads the copy, or this would be another case.
    if (num_devices == 0) return false;
    one.path_ns = std::max(one.path_ns, path);
    // Of several devices it is not known which one does.
    if (num_devices == 1) one.idle_ns[problem_.num_resources + user] = release + tail;
  }
  return true;
}

double ModuleBound::Direct(int entry, int exit, std::span<const double> price) const {
  if (exit < 0) return 0;
  const int task = module_.num_tasks - 1;
  const int memory = problem_.device_memory[exit];
  double ready = 0, bytes = static_cast<double>(module_.weight_bytes[task]), cost = 0;
  for (int tensor : module_.reads[task]) {
    const bool is_input = entry < 0 && module_.source[tensor] >= 0 && module_.producer[tensor] < 0;
    if (module_.is_from_cut[tensor] == 0 && !is_input) continue;
    const int home = is_input ? module_.source[tensor] : problem_.device_memory[entry];
    if (home == memory) continue;
    const int64_t transfer = module_.Transfer(tensor, home, memory);
    if (transfer == model::kImpossible) return kImpossibleBound;
    ready = std::max(ready, static_cast<double>(transfer));
    // Copies of a cut that inner tasks share are charged to them; the host has room set aside.
    const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
    if (trees_.num_inner() == 0 && !is_input && !is_set_aside) {
      cost += price[memory] * static_cast<double>(module_.charged_bytes[tensor]);
    }
  }
  for (int tensor : module_.makes[task]) {
    const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
    if (!is_set_aside) bytes += static_cast<double>(module_.charged_bytes[tensor]);
  }
  cost += price[memory] * bytes;
  if (trees_.num_inner() == 0) {
    cost += ready + static_cast<double>(module_.Run(task, exit));
  }
  return cost;
}

double ModuleBound::Bound(int entry, int exit, std::span<const double> price, int iterations) {
  if (exit >= 0 && module_.Run(module_.num_tasks - 1, exit) == model::kImpossible)
    return kImpossibleBound;
  Pair& pair = At(entry, exit);
  const double own = Direct(entry, exit, price);
  if (!pair.is_ready && IsOver()) {
    pair.used.assign(module_.num_memories, 0.0);
    return own;
  }
  if (!pair.is_ready) Prepare(entry, exit, pair);
  if (trees_.num_inner() == 0) {
    if (exit < 0) return 0;
    std::fill(pair.used.begin(), pair.used.end(), 0.0);
    std::vector<double> unit(module_.num_memories, 0.0);
    for (size_t memory = 0; memory < unit.size(); ++memory) {
      unit[memory] = 1;
      std::vector<double> none(module_.num_memories, 0.0);
      pair.used[memory] = Direct(entry, exit, unit) - Direct(entry, exit, none);
      unit[memory] = 0;
    }
    return own;
  }
  double least = kImpossibleBound;
  std::vector<double> used;
  std::vector<Met> met;
  // The case that decided last time comes first, so that others can be left early.
  const size_t first = pair.latest;
  for (size_t turn = 0; turn < pair.cases.size(); ++turn) {
    const size_t index = turn == 0 ? first : turn <= first ? turn - 1 : turn;
    const double value =
        Maximise(entry, exit, pair.cases[index], price, {iterations, least}, used, met);
    if (value < least) {
      least = value;
      pair.used = used;
      std::swap(pair.met, met);
      pair.latest = index;
    }
  }
  if (least >= kImpossibleBound) return kImpossibleBound;
  if (exit >= 0) {
    std::vector<double> none(module_.num_memories, 0.0), unit(none);
    for (size_t memory = 0; memory < unit.size(); ++memory) {
      unit[memory] = 1;
      pair.used[memory] += Direct(entry, exit, unit) - Direct(entry, exit, none);
      unit[memory] = 0;
    }
  }
  return least + own;
}

double ModuleBound::LeastMemory(const Scope& scope, std::span<const double> price) const {
  double total = 0;
  for (int task = 0; task < trees_.num_inner(); ++task) {
    double least = kFar;
    for (int device : module_.allowed[task]) {
      if (!Has(scope.devices, device)) continue;
      least = std::min(least, price[problem_.device_memory[device]] *
                                  static_cast<double>(module_.weight_bytes[task]));
    }
    total += least;
  }
  return total;
}

double ModuleBound::Evaluate(int entry, int exit, const Case& one, const Prices& prices) {
  work_ -= trees_.num_distinct();
  const int home = entry < 0 ? -1 : problem_.device_memory[entry];
  if (!trees_.Solve(prices, one.scope, home, exit, use_)) return kImpossibleBound;
  double value = use_.cost;
  slope_ = use_.busy_ns;
  if (is_enumerable_ && home >= 0) {
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      if (memory == home || !Has(one.scope.memories, memory)) continue;
      // At least one of the tensors of the cut is copied there: the cheapest, to be safe.
      double least = kFar;
      int cheapest = -1;
      for (int tensor : cut_tensors_) {
        const int64_t transfer = module_.Transfer(tensor, home, memory);
        if (transfer == model::kImpossible) continue;
        double rate = 0;
        for (int resource : problem_.route_resources[problem_.Pair(home, memory)]) {
          rate += prices.resource[resource];
        }
        const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
        const double bytes =
            is_set_aside ? 0.0 : static_cast<double>(module_.charged_bytes[tensor]);
        const double cost = rate * static_cast<double>(transfer) + prices.memory[memory] * bytes;
        if (cost < least) {
          least = cost;
          cheapest = tensor;
        }
      }
      if (cheapest < 0) return kImpossibleBound;
      value += least;
      for (int resource : problem_.route_resources[problem_.Pair(home, memory)]) {
        slope_[resource] += static_cast<double>(module_.Transfer(cheapest, home, memory));
      }
      const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[cheapest] != 0;
      if (!is_set_aside) {
        use_.used[memory] += static_cast<double>(module_.charged_bytes[cheapest]);
      }
    }
  }
  for (size_t resource = 0; resource < slope_.size(); ++resource) {
    value += prices.resource[resource] * one.idle_ns[resource];
    slope_[resource] += one.idle_ns[resource];
  }
  return value;
}

double ModuleBound::Maximise(int entry, int exit, Case& one, std::span<const double> price,
                             const Effort& effort, std::vector<double>& used,
                             std::vector<Met>& met) {
  Prices prices{one.resource, {price.begin(), price.end()}};
  double best = one.path_ns + LeastMemory(one.scope, price);
  used.assign(module_.num_memories, 0.0);
  met.clear();
  double weight = 0, step = 1.0;
  double best_combination = -kFar;
  int without_gain = 0;
  bool is_evaluated = false;
  for (int iteration = 0; iteration < effort.iterations && best < effort.enough; ++iteration) {
    if (IsOver()) break;
    is_evaluated = true;
    const double value = Evaluate(entry, exit, one, prices);
    if (value >= kImpossibleBound) return kImpossibleBound;
    best = std::max(best, value);
    if (value > best_combination) {
      best_combination = value;
      one.resource = prices.resource;
      without_gain = 0;
    } else if (++without_gain >= kPatience) {
      step /= 2;
      without_gain = 0;
      prices.resource = one.resource;
      if (step < 1e-4) break;
    }
    double mean = 0, norm = 0;
    for (double slope : slope_) mean += slope;
    mean /= static_cast<double>(slope_.size());
    for (double slope : slope_) norm += (slope - mean) * (slope - mean);
    if (norm == 0) break;
    // As long as nothing better is known, aim a little above the best.
    const double aim =
        effort.enough < kFar ? effort.enough * 1.0005 : best_combination * 1.02 + 1.0;
    const double length = step * std::max(aim - value, 1e-6 * aim) / norm;
    for (size_t resource = 0; resource < slope_.size(); ++resource) {
      prices.resource[resource] += length * (slope_[resource] - mean);
    }
    ProjectOntoSimplex(prices.resource);
    // Later placements belong to better prices.
    weight = kMemory * weight + length;
    if (keeps_samples_) {
      for (Met& one : met) one.weight *= kMemory;
      met.push_back({length, trees_.solution()});
    }
    for (double& bytes : used) bytes *= kMemory;
    for (size_t memory = 0; memory < used.size(); ++memory) {
      used[memory] += length * use_.used[memory];
    }
  }
  for (double& bytes : used) bytes /= weight > 0 ? weight : 1.0;
  if (weight == 0 && is_evaluated) {
    used = use_.used;
    if (keeps_samples_) met.push_back({1.0, trees_.solution()});
  }
  return best;
}

void ModuleBound::Sample(int entry, int exit, double turn, std::span<int> device) const {
  if (exit >= 0) device.back() = exit;
  const std::vector<Met>& met = At(entry, exit).met;
  if (trees_.num_inner() == 0 || met.empty()) return;
  double total = 0;
  for (const Met& one : met) total += one.weight;
  // Trees take turns, so that each placement gets its share of them.
  const int count = trees_.num_trees();
  for (int tree = 0; tree < count; ++tree) {
    double left = std::fmod(turn + static_cast<double>(tree) / count, 1.0) * total;
    size_t index = 0;
    while (index + 1 < met.size() && left >= met[index].weight) left -= met[index++].weight;
    trees_.Apply(tree, met[index].solution, device);
  }
}

}  // namespace heteroplace::bounds
