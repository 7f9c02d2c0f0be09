#include <algorithm>
#include <utility>

#include "bounds/head_tail_bound.h"
#include "bounds/module_bound.h"

// Which sets of devices and memories a module may use, and what each of them has to wait for.

namespace heteroplace::bounds {

namespace {

constexpr int64_t kHeadTailWork = 8;  // what the head-tail bound of a task costs, in looks at it
constexpr double kMinEarly = 0.02;    // early phase that is worth its own prices, of the path

uint32_t FirstOnes(int count) { return count == 0 ? 0 : ~0U >> (32 - count); }

}  // namespace

void ModuleBound::Prepare(int entry, int exit, Pair& pair) {
  pair.is_ready = true;
  pair.used.assign(module_.num_memories, 0.0);
  const uint32_t all_devices = FirstOnes(problem_.num_devices);
  const uint32_t all_memories = FirstOnes(problem_.num_memories);
  if (!is_enumerable_) {
    AddCase(entry, exit, {all_devices, all_memories, {}}, false, pair);
    return;
  }
  const uint32_t home = entry < 0 ? 0 : 1U << problem_.device_memory[entry];
  for (uint32_t devices = 1; devices <= all_devices; ++devices) {
    uint32_t memories = 0;
    for (int device = 0; device < problem_.num_devices; ++device) {
      if (Has(devices, device)) memories |= 1U << problem_.device_memory[device];
    }
    if (entry < 0) {
      AddCase(entry, exit, {devices, all_memories, {}}, true, pair);
      continue;
    }
    // Every set of other memories in use that receive what the cut made.
    const uint32_t others = memories & ~home;
    for (uint32_t part = others;; part = (part - 1) & others) {
      AddCase(entry, exit, {devices, part | home, {}}, true, pair);
      if (part == 0) break;
    }
  }
}

bool ModuleBound::AddCase(int entry, int exit, const Scope& scope, bool is_exact, Pair& pair) {
  work_ -= kHeadTailWork * trees_.num_inner();
  const HeadTailBound head_tail(problem_, module_, scope, entry, exit);
  const auto resources = static_cast<size_t>(problem_.num_resources + problem_.num_devices);
  Case one{scope, std::vector<double>(resources, 0.0), 0, std::vector<double>(resources, 0.0), 0};
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
  one.early_ns = EarlyPhase(entry, head_tail, one);
  if (one.early_ns > 0) AddPhases(head_tail, release, tail, is_exact, one);
  pair.cases.push_back(std::move(one));
  return true;
}

/*! \brief Until when nothing that reads the cut's tensors can start in another memory; 0: it is not
 * worth a phase, or nothing ever does. */
double ModuleBound::EarlyPhase(int entry, const HeadTailBound& head_tail, const Case& one) const {
  if (entry < 0) return 0;
  double first = kFar;
  for (int task = 0; task < trees_.num_inner(); ++task) {
    if (!trees_.ReadsCut(task)) continue;
    for (int device : module_.allowed[task]) {
      if (problem_.device_memory[device] == problem_.device_memory[entry]) continue;
      if (Has(one.scope.devices, device)) first = std::min(first, head_tail.start(task, device));
    }
  }
  if (first >= kFar) return 0;
  // No plan is shorter than the phase.
  first = std::min(first, one.path_ns);
  return first < kMinEarly * one.path_ns ? 0 : first;
}

void ModuleBound::AddPhases(const HeadTailBound& head_tail, std::span<const double> release,
                            std::span<const double> tail, bool is_exact, Case& one) const {
  const double early = one.early_ns;
  one.scope.is_late = trees_.LateStarts(
      [&](int task, int device) { return head_tail.start(task, device) >= early; });
  const std::vector<double> first = one.resource;
  for (int resource = 0; resource < problem_.num_resources; ++resource) {
    const bool is_bounded = !is_copying_[resource] && release[resource] < kFar;
    const double begin = is_bounded ? release[resource] : 0.0;
    const double end = is_bounded ? tail[resource] : 0.0;
    // Without late use the tail says nothing but for what no plan is shorter than.
    if (!is_exact || begin < early) one.idle_ns[resource] = std::min(early + end, one.path_ns);
    one.idle_ns.push_back(std::min(begin, early) - early);
    one.resource.push_back(first[resource]);
  }
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

}  // namespace heteroplace::bounds
