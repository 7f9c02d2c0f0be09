#include "list/etf.h"

#include "list/ranks.h"
#include "list/ready_queue.h"

namespace heteroplace {

Schedule Etf(const Problem& problem, const Csr& devices) {
  return PlaceEarliest(problem, devices, UpwardRanks(problem), Earliest::kFinish);
}

}  // namespace heteroplace
