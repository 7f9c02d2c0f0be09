#include "list/order_place.h"

#include "list/fill.h"

namespace heteroplace::list {

model::NativePlan OrderPlace(const model::Problem& problem, std::span<const int> order) {
  const std::vector<int> device =
      FillMemories(problem, order, problem.memory_bytes, FillRule::kReturn);
  return ScheduleInOrder(problem, device, order);
}

}  // namespace heteroplace::list
