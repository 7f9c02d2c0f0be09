#include "bounds/module_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "bounds/simplex.h"

namespace heteroplace::bounds {

namespace {

constexpr int kMaxDevicesToTry = 4;
constexpr double kMemory = 0.97;    // weight of a placement met one iteration before
constexpr int kPatience = 30;       // iterations without gain before the step is halved
constexpr double kLastStep = 1e-3;  // ends the ascent
constexpr double kInertia = 0.85;   // of the direction: many equal trees change sides at once

}  // namespace

ModuleBound::ModuleBound(const model::Problem& problem, const decompose::Module& module,
                         bool keeps_samples)
    : problem_(problem),
      module_(module),
      trees_(problem, module),
      is_enumerable_(problem.num_devices <= kMaxDevicesToTry),
      keeps_samples_(keeps_samples),
      is_copying_(static_cast<size_t>(problem.num_resources), false) {
  for (int resource : problem.route_resources.values) is_copying_[resource] = true;
  for (int tensor = 0; tensor < module.num_tensors; ++tensor) {
    if (module.is_from_cut[tensor] != 0) cut_tensors_.push_back(tensor);
  }
}

ModuleBound::Own ModuleBound::OwnOf(int entry, int exit) const {
  Own own;
  if (exit < 0) return own;
  const int task = module_.num_tasks - 1;
  const int memory = problem_.device_memory[exit];
  double ready = 0;
  own.kept_bytes = static_cast<double>(module_.weight_bytes[task]);
  for (int tensor : module_.reads[task]) {
    const bool is_input = entry < 0 && module_.source[tensor] >= 0 && module_.producer[tensor] < 0;
    if (module_.is_from_cut[tensor] == 0 && !is_input) continue;
    const int home = is_input ? module_.source[tensor] : problem_.device_memory[entry];
    if (home == memory) continue;
    const int64_t transfer = module_.Transfer(tensor, home, memory);
    if (transfer == model::kImpossible) {
      own.is_possible = false;
      return own;
    }
    ready = std::max(ready, static_cast<double>(transfer));
    // Copies of a cut that inner tasks share are charged to them; the host has room set aside.
    const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
    if (trees_.num_inner() == 0 && !is_input && !is_set_aside) {
      own.copied_bytes += static_cast<double>(module_.charged_bytes[tensor]);
    }
  }
  for (int tensor : module_.makes[task]) {
    const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
    if (!is_set_aside) own.kept_bytes += static_cast<double>(module_.charged_bytes[tensor]);
  }
  if (trees_.num_inner() == 0) own.ns = ready + static_cast<double>(module_.Run(task, exit));
  return own;
}

double ModuleBound::OwnCost(const Own& own, int exit, std::span<const double> price) const {
  if (exit < 0) return 0;
  if (!own.is_possible) return kImpossibleBound;
  const double rate = price[problem_.device_memory[exit]];
  return rate * own.copied_bytes + rate * own.kept_bytes + own.ns;
}

void ModuleBound::AddUsed(int entry, int exit, std::vector<double>& total) const {
  if (trees_.num_inner() == 0) {
    if (exit < 0) return;
    const Own own = OwnOf(entry, exit);
    total[problem_.device_memory[exit]] += own.copied_bytes + own.kept_bytes;
    return;
  }
  if (pairs_.empty()) return;  // the time was over
  const std::vector<double>& used = At(entry, exit).used;
  for (size_t memory = 0; memory < used.size(); ++memory) total[memory] += used[memory];
}

double ModuleBound::Bound(int entry, int exit, std::span<const double> price, int iterations) {
  if (exit >= 0 && module_.Run(module_.num_tasks - 1, exit) == model::kImpossible)
    return kImpossibleBound;
  const Own own = OwnOf(entry, exit);
  const double own_cost = OwnCost(own, exit, price);
  if (trees_.num_inner() == 0) return own_cost;
  if (pairs_.empty()) {
    if (IsOver()) return own_cost;
    pairs_.resize((module_.num_devices + 1) * (module_.num_devices + 1));
  }
  Pair& pair = At(entry, exit);
  if (!pair.is_ready) {
    if (IsOver()) return own_cost;
    Prepare(entry, exit, pair);
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
  if (exit >= 0 && own.is_possible) {
    pair.used[problem_.device_memory[exit]] += own.copied_bytes + own.kept_bytes;
  }
  return least + own_cost;
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
      if (!AddCutCopy(home, memory, one, prices, value)) return kImpossibleBound;
    }
  }
  for (size_t resource = 0; resource < slope_.size(); ++resource) {
    value += prices.resource[resource] * one.idle_ns[resource];
    slope_[resource] += one.idle_ns[resource];
  }
  return value;
}

/*!
 * \brief Adds the copy of one of the cut's tensors to a memory: the cheapest, to be safe.
 * \return False if there is none.
 */
bool ModuleBound::AddCutCopy(int home, int memory, const Case& one, const Prices& prices,
                             double& value) {
  const auto late_at = static_cast<size_t>(problem_.num_resources + problem_.num_devices);
  const auto route = problem_.route_resources[problem_.Pair(home, memory)];
  double late_rate = 0, early_rate = 0;
  for (int resource : route) {
    late_rate += prices.resource[resource];
    if (one.early_ns > 0) early_rate += prices.resource[late_at + static_cast<size_t>(resource)];
  }
  // As much of it as fits is in the cheaper phase.
  const double most_early = early_rate < late_rate ? one.early_ns : 0.0;
  double least = kFar, bytes = 0, early = 0, late = 0;
  for (int tensor : cut_tensors_) {
    const int64_t transfer = module_.Transfer(tensor, home, memory);
    if (transfer == model::kImpossible) continue;
    const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
    const double charged = is_set_aside ? 0.0 : static_cast<double>(module_.charged_bytes[tensor]);
    const double first = std::min(most_early, static_cast<double>(transfer));
    const double rest = static_cast<double>(transfer) - first;
    const double cost = early_rate * first + late_rate * rest + prices.memory[memory] * charged;
    if (cost >= least) continue;
    least = cost;
    bytes = charged;
    early = first;
    late = rest;
  }
  if (least >= kFar) return false;
  value += least;
  use_.used[memory] += bytes;
  for (int resource : route) {
    slope_[resource] += late;
    if (one.early_ns > 0) slope_[late_at + static_cast<size_t>(resource)] += early;
  }
  return true;
}

/*!
 * \brief Adds the slope to a mean of the slopes so far, and makes of that a direction in which
 * prices stay prices: those of one phase or of the late one keep their sum, those of the early one
 * stay >= 0. Returns its square length.
 */
double ModuleBound::Direction(const Case& one, std::span<const double> resource,
                              std::vector<double>& mean_slope) {
  const size_t early_at = one.early_ns > 0
                              ? slope_.size() - static_cast<size_t>(problem_.num_resources)
                              : slope_.size();
  double mean = 0, norm = 0;
  for (size_t index = 0; index < slope_.size(); ++index) {
    double& slope = mean_slope[index];
    slope = kInertia * slope + (1 - kInertia) * slope_[index];
    slope_[index] = slope;
    if (index < early_at) mean += slope / static_cast<double>(early_at);
  }
  for (size_t index = 0; index < slope_.size(); ++index) {
    double& slope = slope_[index];
    if (index < early_at) slope -= mean;
    if (index >= early_at && resource[index] <= 0) slope = std::max(0.0, slope);
    norm += slope * slope;
  }
  return norm;
}

double ModuleBound::Maximise(int entry, int exit, Case& one, std::span<const double> price,
                             const Effort& effort, std::vector<double>& used,
                             std::vector<Met>& met) {
  Prices prices{one.resource, {price.begin(), price.end()}};
  double best = one.path_ns + LeastMemory(one.scope, price);
  used.assign(module_.num_memories, 0.0);
  met.clear();
  const auto num_shares = static_cast<size_t>(problem_.num_resources + problem_.num_devices);
  std::vector<double> mean_slope(one.resource.size(), 0.0);
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
      if (step < kLastStep) break;
    }
    const double norm = Direction(one, prices.resource, mean_slope);
    if (norm == 0) break;
    // As long as nothing better is known, aim a little above the best.
    const double aim =
        effort.enough < kFar ? effort.enough * 1.0005 : best_combination * 1.02 + 1.0;
    const double length = step * std::max(aim - value, 1e-6 * aim) / norm;
    for (size_t resource = 0; resource < slope_.size(); ++resource) {
      prices.resource[resource] = std::max(prices.resource[resource] + length * slope_[resource],
                                           resource < num_shares ? -kFar : 0.0);
    }
    ProjectOntoSimplex(std::span(prices.resource).first(num_shares));
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
  if (pairs_.empty()) return;
  const std::vector<Met>& met = At(entry, exit).met;
  if (met.empty()) return;
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
