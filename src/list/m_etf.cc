#include "list/m_etf.h"

#include "list/ranks.h"
#include "list/ready_queue.h"

namespace heteroplace::list {

model::NativePlan MEtf(const model::Problem& problem) {
  return PlaceEarliest(problem, problem.allowed, UpwardRanks(problem), Earliest::kStart);
}

}  // namespace heteroplace::list
