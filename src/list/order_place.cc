#include "list/order_place.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "list/fill.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

namespace {

constexpr int kMaxFillings = 16;

/*! \brief Bytes that each memory lacks at its peak. */
std::vector<int64_t> LiveLacks(const model::Problem& problem, const model::NativePlan& plan) {
  const simulate::Times times = simulate::Simulate(problem, model::ToSteps(problem, plan));
  std::vector<int64_t> lacks = times.peak_bytes;
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    lacks[memory] = std::max<int64_t>(0, lacks[memory] - problem.memory_bytes[memory]);
  }
  return lacks;
}

}  // namespace

model::NativePlan OrderPlace(const model::Problem& problem, std::span<const int> order) {
  std::vector<int64_t> capacity = problem.memory_bytes;
  model::NativePlan best;
  for (int filling = 0; filling < kMaxFillings; ++filling) {
    const std::vector<int> device = FillMemories(problem, order, capacity, FillRule::kReturn);
    model::NativePlan plan = ScheduleInOrder(problem, device, order);
    const bool may_shrink = problem.counts_lifetimes && plan.violation > 0 &&
                            plan.violation < model::kUnreachablePenalty;
    if (!may_shrink) return filling == 0 || plan.violation == 0 ? plan : best;
    const std::vector<int64_t> lacks = LiveLacks(problem, plan);
    if (filling == 0 || plan.violation < best.violation) best = std::move(plan);
    for (int memory = 0; memory < problem.num_memories; ++memory) {
      capacity[memory] -= lacks[memory];
    }
  }
  return best;
}

}  // namespace heteroplace::list
