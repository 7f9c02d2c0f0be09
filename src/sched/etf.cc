#include "sched/etf.h"

#include "sched/ranks.h"
#include "sched/ready_queue.h"

namespace heteroplace {

Schedule Etf(const Problem& problem, const Csr& devices) {
  return PlaceEarliest(problem, devices, UpwardRanks(problem), Earliest::kFinish);
}

}  // namespace heteroplace
