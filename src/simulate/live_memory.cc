#include "simulate/live_memory.h"

#include <algorithm>
#include <cstddef>
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

void LiveMemory::Begins(int64_t bytes, int memory, int first) {
  if (bytes == 0) return;
  if (memory_[first] >= 0 && memory_[first] != memory) {
    elsewhere_.push_back({first, memory, bytes, 0});
    return;
  }
  brought_[first] += bytes;
  memory_[first] = memory;
}

void LiveMemory::AddTensor(int tensor, int memory, int first, int last, int64_t end_ns) {
  AddBytes(problem_.tensor_bytes[tensor], memory, first, last, end_ns);
}

void LiveMemory::AddBytes(int64_t bytes, int memory, int first, int last, int64_t end_ns) {
  if (bytes == 0) return;
  Begins(bytes, memory, first);
  releases_.push_back({last, memory, end_ns, bytes});
}

bool LiveMemory::IsKept(int tensor, int memory, bool is_copied) const {
  if (problem_.is_output[tensor] == 0) return false;
  return problem_.host < 0 ? !is_copied : memory == problem_.host;
}

void LiveMemory::Count(const Begin& begin, std::vector<int64_t>& live, Times& times) {
  const int memory = begin.memory;
  live[memory] += begin.bytes - begin.freed;
  if (live[memory] <= times.peak_bytes[memory]) return;
  times.peak_bytes[memory] = live[memory];
  times.peak_ns[memory] = times.start_ns[begin.step];
  times.peak_step[memory] = begin.step;
}

std::vector<int64_t> LiveMemory::Free(const std::vector<int64_t>& start_ns) {
  struct Takers {
    std::vector<int> steps;         // that bring something to the memory, ascending
    std::vector<int64_t> earliest;  // start of any of them from there on
  };
  std::vector<Takers> takers(base_bytes_.size());
  std::vector<size_t> behind(memory_.size(), 0);  // of each step, in its memory's takers
  auto also = elsewhere_.begin();
  for (size_t step = 0; step < memory_.size(); ++step) {
    if (memory_[step] < 0) continue;
    takers[memory_[step]].steps.push_back(static_cast<int>(step));
    behind[step] = takers[memory_[step]].steps.size();
    for (; also != elsewhere_.end() && also->step == static_cast<int>(step); ++also) {
      std::vector<int>& steps = takers[also->memory].steps;
      if (steps.empty() || steps.back() != also->step) steps.push_back(also->step);
    }
  }
  for (Takers& taker : takers) {
    taker.earliest.resize(taker.steps.size());
    int64_t earliest = std::numeric_limits<int64_t>::max();
    for (size_t at = taker.steps.size(); at-- > 0;) {
      earliest = std::min(earliest, start_ns[taker.steps[at]]);
      taker.earliest[at] = earliest;
    }
  }
  std::vector<int64_t> freed(memory_.size(), 0);
  for (const Release& release : releases_) {
    const std::vector<int>& steps = takers[release.memory].steps;
    const std::vector<int64_t>& earliest = takers[release.memory].earliest;
    size_t from = behind[release.last];
    if (memory_[release.last] != release.memory) {
      const auto next = std::ranges::upper_bound(steps, release.last);
      from = static_cast<size_t>(next - steps.begin());
    }
    // Mostly it is near: in strides that double.
    size_t to = from, stride = 1;
    while (to < steps.size() && earliest[to] < release.end_ns) {
      from = to + 1;
      to += stride;
      stride *= 2;
    }
    const auto begin = earliest.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(to, steps.size()));
    const auto free =
        std::lower_bound(begin + static_cast<std::ptrdiff_t>(from), end, release.end_ns);
    const auto at = static_cast<size_t>(free - begin);
    if (at == steps.size()) continue;
    if (memory_[steps[at]] == release.memory) {
      freed[steps[at]] += release.bytes;
    } else {
      AtElsewhere(steps[at], release.memory).freed += release.bytes;
    }
  }
  return freed;
}

LiveMemory::Begin& LiveMemory::AtElsewhere(int step, int memory) {
  auto begin = std::ranges::lower_bound(elsewhere_, step, {}, &Begin::step);
  while (begin->memory != memory) ++begin;
  return *begin;
}

void LiveMemory::FindPeaks(Times& times) {
  std::vector<int64_t> live = base_bytes_;
  times.held_bytes = base_bytes_;
  times.peak_bytes = base_bytes_;
  times.peak_ns.assign(live.size(), 0);
  times.peak_step.assign(live.size(), -1);
  std::ranges::stable_sort(
      elsewhere_, [](const Begin& left, const Begin& right) { return left.step < right.step; });
  const std::vector<int64_t> freed = Free(times.start_ns);
  auto also = elsewhere_.begin();
  for (size_t step = 0; step < memory_.size(); ++step) {
    if (memory_[step] < 0) continue;
    Count({static_cast<int>(step), memory_[step], brought_[step], freed[step]}, live, times);
    for (; also != elsewhere_.end() && also->step == static_cast<int>(step); ++also) {
      Count(*also, live, times);
    }
  }
}

}  // namespace heteroplace::simulate
