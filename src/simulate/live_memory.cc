#include "simulate/live_memory.h"

#include <algorithm>
#include <numeric>

namespace heteroplace::simulate {

namespace {

/*! \brief Steps in order of their times; ties by position. */
std::vector<int> SortByTime(const std::vector<int64_t>& times) {
  std::vector<int> order(times.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&times](int left, int right) { return times[left] < times[right]; });
  return order;
}

}  // namespace

LiveMemory::LiveMemory(const model::Problem& problem, int num_items, size_t num_steps)
    : problem_(problem),
      base_bytes_(problem.num_memories, 0),
      begin_bytes_(num_steps, 0),
      end_written_bytes_(num_steps, 0),
      end_read_bytes_(num_steps, 0) {
  if (problem.host < 0) return;
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    if (problem.producer[tensor] < 0) {
      base_bytes_[problem.host] += problem.tensor_bytes[tensor] * num_items;
    }
  }
}

void LiveMemory::AddWeights(int task, int device) {
  base_bytes_[problem_.device_memory[device]] += problem_.weight_bytes[task];
}

bool LiveMemory::IsKept(int tensor, int memory, model::StepKind maker) const {
  if (problem_.is_output[tensor] == 0) return false;
  return problem_.host < 0 ? maker == model::StepKind::kRun : memory == problem_.host;
}

void LiveMemory::FindPeaks(const model::Steps& steps, Times& times) const {
  std::vector<int64_t> live = base_bytes_;
  times.peak_bytes = base_bytes_;
  times.peak_ns.assign(live.size(), 0);
  times.peak_step.assign(live.size(), -1);
  const std::vector<int> finishing = SortByTime(times.finish_ns);
  auto ended = finishing.begin();
  const auto written = [&](const model::Step& step) {
    return step.kind == model::StepKind::kRun ? problem_.device_memory[step.dst] : step.dst;
  };
  for (int started : SortByTime(times.start_ns)) {
    const int64_t now = times.start_ns[started];
    // Ends come before starts of the same time: the intervals are half open.
    for (; ended != finishing.end() && times.finish_ns[*ended] <= now; ++ended) {
      const model::Step& step = steps.list[*ended];
      const int memory = written(step);
      live[memory] -= end_written_bytes_[*ended];
      live[step.kind == model::StepKind::kRun ? memory : step.src] -= end_read_bytes_[*ended];
    }
    const int memory = written(steps.list[started]);
    live[memory] += begin_bytes_[started];
    if (live[memory] > times.peak_bytes[memory]) {
      times.peak_bytes[memory] = live[memory];
      times.peak_ns[memory] = now;
      times.peak_step[memory] = started;
    }
  }
}

}  // namespace heteroplace::simulate
