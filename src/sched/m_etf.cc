#include "sched/m_etf.h"

#include "sched/ranks.h"
#include "sched/ready_queue.h"

namespace heteroplace {

Schedule MEtf(const Problem& problem) {
  return PlaceEarliest(problem, problem.allowed, UpwardRanks(problem), Earliest::kStart);
}

}  // namespace heteroplace
