#include "list/etf.h"

#include "list/ranks.h"
#include "list/ready_queue.h"

namespace heteroplace::list {

model::NativePlan Etf(const model::Problem& problem, const model::Csr& devices,
                      const Watch& watch) {
  return PlaceEarliest(problem, devices, UpwardRanks(problem), Earliest::kFinish, watch);
}

}  // namespace heteroplace::list
