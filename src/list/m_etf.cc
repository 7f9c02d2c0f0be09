#include "list/ranks.h"
#include "list/ready_queue.h"
#include "list/scheduler.h"

namespace heteroplace::list {

namespace {

/*!
 * \brief m-ETF (Jeon et al., "Baechi", SoCC 2020, section 3, DOI 10.1145/3419111.3421302): of all
 * ready tasks and devices with room the pair that starts first goes next; ties: larger b-level,
 * then less run time.
 *
 * The memory of a co-location group is charged with its first task. Complexity as Etf.
 */
model::NativePlan MEtf(const model::Problem& problem, const Watch& watch) {
  return PlaceEarliest(problem, problem.allowed, UpwardRanks(problem), Earliest::kStart, watch);
}

const Scheduler kMEtf{"m_etf", MEtf};

}  // namespace

}  // namespace heteroplace::list
