#include "simulate/loaded_weights.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "support/error.h"

namespace heteroplace::simulate {

LoadedWeights::LoadedWeights(const model::Problem& problem, const model::ExplicitSteps& steps)
    : problem_(problem), steps_(steps) {
  const std::vector<int>& loads = steps.loads.values;
  for (size_t at = 0; at + 1 < loads.size(); at += 2) there_[{loads[at], loads[at + 1]}] = {};
}

void LoadedWeights::Hold(model::MemoryUse& use, LiveMemory& live) const {
  for (size_t at = 0; at + 1 < steps_.kept.size(); at += 2) {
    const int64_t bytes = problem_.weight_bytes[steps_.kept[at]];
    use.AddHeld(steps_.kept[at + 1], bytes);
    live.AddHeld(steps_.kept[at + 1], bytes);
  }
}

int64_t LoadedWeights::ArrivalNs(int task, int memory, int step) const {
  if (there_.empty()) return 0;
  const auto found = there_.find({task, memory});
  if (found == there_.end()) return 0;
  if (found->second.arrival_ns < 0) {
    throw Error(ErrorKind::kPlan, "step " + std::to_string(step) + " runs task " +
                                      std::to_string(task) +
                                      ", whose weights only a later step loads; check_plan lists "
                                      "all faults");
  }
  return found->second.arrival_ns;
}

void LoadedWeights::Read(int task, int memory, int step, int64_t finish_ns) {
  if (there_.empty()) return;
  const auto found = there_.find({task, memory});
  if (found == there_.end()) return;
  found->second.end_ns = std::max(found->second.end_ns, finish_ns);
  found->second.last = step;
}

void LoadedWeights::Bring(std::span<const int> pairs, int step, int64_t finish_ns,
                          model::MemoryUse& use) {
  for (size_t at = 0; at + 1 < pairs.size(); at += 2) {
    Span& there = there_[{pairs[at], pairs[at + 1]}];
    if (there.first < 0) {
      there.first = step;
      use.AddHeld(pairs[at + 1], problem_.weight_bytes[pairs[at]]);
    }
    there.arrival_ns = std::max(there.arrival_ns, finish_ns);
    there.end_ns = std::max(there.end_ns, finish_ns);
    there.last = step;
  }
}

void LoadedWeights::Close(LiveMemory& live) const {
  for (const auto& [place, there] : there_) {
    if (there.first < 0) continue;
    live.AddBytes(problem_.weight_bytes[place.first], place.second, there.first, there.last,
                  there.end_ns);
  }
}

}  // namespace heteroplace::simulate
