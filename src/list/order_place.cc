#include "list/order_place.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "list/fill.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

namespace {

constexpr int kMaxFillings = 8;  // each costs as much as a plan

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
    if (plan.violation == 0) return plan;
    const bool can_shrink = problem.counts_lifetimes && plan.violation < model::kUnreachablePenalty;
    const std::vector<int64_t> lacks =
        can_shrink ? LiveLacks(problem, plan) : std::vector<int64_t>(capacity.size(), 0);
    if (filling == 0 || plan.violation < best.violation) best = std::move(plan);
    if (!can_shrink) break;
    for (size_t memory = 0; memory < capacity.size(); ++memory) capacity[memory] -= lacks[memory];
  }
  return best;
}

}  // namespace heteroplace::list
