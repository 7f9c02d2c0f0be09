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
  if (memory_[first] >= 0 && memory_[first] != memory) {
    elsewhere_.push_back({first, memory, bytes});
    return;
  }
  brought_[first] += bytes;
  memory_[first] = memory;
}

void LiveMemory::AddTensor(int tensor, int memory, int first, int last, int64_t end_ns) {
  if (problem_.tensor_bytes[tensor] == 0) return;
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

void LiveMemory::FindPeaks(Times& times) {
  const size_t count = times.start_ns.size();
  std::vector<int64_t> live = base_bytes_;
  times.held_bytes = base_bytes_;
  times.peak_bytes = base_bytes_;
  times.peak_ns.assign(live.size(), 0);
  times.peak_step.assign(live.size(), -1);
  // From a step on nothing starts before this.
  std::vector<int64_t> earliest(count + 1, std::numeric_limits<int64_t>::max());
  for (size_t step = count; step-- > 0;) {
    earliest[step] = std::min(earliest[step + 1], times.start_ns[step]);
  }
  // A release counts with the first step behind its last reader that starts when all are done.
  std::vector<std::pair<size_t, const Release*>> due;
  due.reserve(releases_.size());
  for (const Release& release : releases_) {
    const auto behind = earliest.begin() + release.last + 1;
    const auto free = std::lower_bound(behind, earliest.end(), release.end_ns);
    due.emplace_back(static_cast<size_t>(free - earliest.begin()), &release);
  }
  std::sort(due.begin(), due.end(),
            [](const auto& left, const auto& right) { return left.first < right.first; });
  std::stable_sort(elsewhere_.begin(), elsewhere_.end(),
                   [](const Begin& left, const Begin& right) { return left.step < right.step; });
  auto released = due.begin();
  auto also = elsewhere_.begin();
  for (size_t step = 0; step < count; ++step) {
    for (; released != due.end() && released->first <= step; ++released) {
      live[released->second->memory] -= released->second->bytes;
    }
    if (memory_[step] < 0) continue;
    Count({static_cast<int>(step), memory_[step], brought_[step]}, live, times);
    for (; also != elsewhere_.end() && also->step == static_cast<int>(step); ++also) {
      Count(*also, live, times);
    }
  }
}

}  // namespace heteroplace::simulate
