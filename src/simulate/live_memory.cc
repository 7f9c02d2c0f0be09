#include "simulate/live_memory.h"

#include <algorithm>
#include <limits>

namespace heteroplace::simulate {

LiveMemory::LiveMemory(const model::Problem& problem, int num_items, size_t num_steps)
    : problem_(problem),
      base_bytes_(problem.num_memories, 0),
      workspace_(problem.num_devices, 0),
      brought_(num_steps, 0),
      memory_(num_steps, -1) {
  if (problem.host < 0) return;
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    if (problem.producer[tensor] >= 0 || problem.values.IsState(tensor)) continue;
    const int count = problem.values.IsShared(tensor) ? 1 : num_items;
    base_bytes_[problem.host] += problem.tensor_bytes[tensor] * count;
  }
}

void LiveMemory::AddBatch(int task, int device, int num_items, bool has_weights) {
  int64_t& base = base_bytes_[problem_.device_memory[device]];
  if (!has_weights) base += problem_.weight_bytes[task];
  const int64_t workspace = problem_.workspace_bytes[task] * num_items;
  base += std::max<int64_t>(0, workspace - workspace_[device]);
  workspace_[device] = std::max(workspace_[device], workspace);
}

void LiveMemory::AddKept(int tensor, int memory, int first) {
  const int64_t bytes = problem_.tensor_bytes[tensor];
  if (bytes == 0) return;
  if (memory_[first] >= 0 && memory_[first] != memory) {
    elsewhere_.push_back({first, memory, bytes});
    return;
  }
  brought_[first] += bytes;
  memory_[first] = memory;
}

void LiveMemory::AddTensor(int tensor, int memory, int first, int last, int64_t end_ns) {
  AddKept(tensor, memory, first);
  releases_.push_back({last, memory, end_ns, problem_.tensor_bytes[tensor]});
}

bool LiveMemory::IsKept(int tensor, int memory, model::StepKind maker) const {
  if (problem_.is_output[tensor] == 0) return false;
  return problem_.host < 0 ? maker != model::StepKind::kCopy : memory == problem_.host;
}

void LiveMemory::Count(const Begin& begin, std::vector<int64_t>& live, Times& times) {
  const int memory = begin.memory;
  live[memory] += begin.bytes;
  if (live[memory] <= times.peak_bytes[memory]) return;
  times.peak_bytes[memory] = live[memory];
  times.peak_ns[memory] = times.start_ns[begin.step];
  times.peak_step[memory] = begin.step;
}

std::vector<LiveMemory::Bringing> LiveMemory::FindBringing(const Times& times) const {
  std::vector<Bringing> found(base_bytes_.size());
  auto also = elsewhere_.begin();
  for (int step = 0; step < static_cast<int>(memory_.size()); ++step) {
    if (memory_[step] < 0) continue;
    found[memory_[step]].steps.push_back(step);
    for (; also != elsewhere_.end() && also->step == step; ++also) {
      std::vector<int>& steps = found[also->memory].steps;
      if (steps.empty() || steps.back() != step) steps.push_back(step);
    }
  }
  for (Bringing& each : found) {
    each.earliest.resize(each.steps.size());
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t index = each.steps.size(); index-- > 0;) {
      least = std::min(least, times.start_ns[each.steps[index]]);
      each.earliest[index] = least;
    }
  }
  return found;
}

void LiveMemory::FindPeaks(Times& times) {
  const size_t count = times.start_ns.size();
  std::vector<int64_t> live = base_bytes_;
  times.held_bytes = base_bytes_;
  times.peak_bytes = base_bytes_;
  times.peak_ns.assign(live.size(), 0);
  times.peak_step.assign(live.size(), -1);
  std::stable_sort(elsewhere_.begin(), elsewhere_.end(),
                   [](const Begin& left, const Begin& right) { return left.step < right.step; });
  const std::vector<Bringing> bringing = FindBringing(times);
  // A release counts with the first step behind its last reader that brings something to the memory
  // and starts, as all such steps behind it, when all are done.
  std::vector<std::pair<int, const Release*>> due;
  due.reserve(releases_.size());
  for (const Release& release : releases_) {
    const auto& [steps, earliest] = bringing[release.memory];
    const auto behind = std::upper_bound(steps.begin(), steps.end(), release.last) - steps.begin();
    const auto free = std::lower_bound(earliest.begin() + behind, earliest.end(), release.end_ns);
    if (free == earliest.end()) continue;
    due.emplace_back(steps[static_cast<size_t>(free - earliest.begin())], &release);
  }
  std::sort(due.begin(), due.end(),
            [](const auto& left, const auto& right) { return left.first < right.first; });
  auto released = due.begin();
  auto also = elsewhere_.begin();
  for (int step = 0; step < static_cast<int>(count); ++step) {
    for (; released != due.end() && released->first <= step; ++released) {
      live[released->second->memory] -= released->second->bytes;
    }
    if (memory_[step] < 0) continue;
    Count({step, memory_[step], brought_[step]}, live, times);
    for (; also != elsewhere_.end() && also->step == step; ++also) {
      Count(*also, live, times);
    }
  }
}

}  // namespace heteroplace::simulate
