#include "list/m_topo.h"

#include "graph/dag.h"
#include "graph/topo.h"
#include "list/fill.h"

namespace heteroplace::list {

model::NativePlan MTopo(const model::Problem& problem, TopoCap cap) {
  const std::vector<int> order = graph::BreadthFirstOrder(graph::Dag(problem.successors));
  const std::vector<int64_t> capacity =
      cap == TopoCap::kMemory ? problem.memory_bytes : UniformCapacity(problem);
  const std::vector<int> device = FillMemories(problem, order, capacity, FillRule::kClose);
  return ScheduleInOrder(problem, device, order);
}

}  // namespace heteroplace::list
