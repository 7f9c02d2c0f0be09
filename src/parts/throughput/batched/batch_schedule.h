#pragma once

#include <cstdint>

#include "list/engine/watch.h"
#include "model/problem.h"
#include "model/steps.h"

namespace heteroplace::throughput {

/*! \brief How a batched list scheduler chooses the composition of a task (DiviML, section V,
 * DOI 10.48550/arXiv.2308.00127). */
enum class BatchRule : int {
  kFastest = 0,  // bMET: least run time per item, whatever else happens
  kLatency = 1,  // bGreedy: least latency of all that is scheduled so far
  kFinish = 2,   // bHEFT: earliest finish of the task
};

/*! \brief A plan for several items. */
struct BatchPlan {
  model::Steps steps;  // by start
  int64_t makespan_ns = 0;
  int64_t violation = 0;  // as in NativePlan
};

/*!
 * \brief Schedules all items of all tasks, one batch of each task on each device at most.
 *
 * bGreedy takes the tasks in topological order, the others by upward rank: mean run time of all
 * items at the best batch size, plus the largest mean transfer + rank of a reader. For each task
 * all compositions are tried; the items of a part are those of which most bytes are in its memory.
 * Runs and copies take the first gap. A copy moves those items of one batch that the reader lacks,
 * as one transfer. Less violation goes before the rule; ties: earlier finish of the task, then less
 * sum of finishes, then the first composition. Tasks of a group are split alike.
 *
 * Throws Error(kInfeasible) if a task has no composition.
 * \param watch Asked every few tries.
 * Complexity: O(tasks * compositions * (reads * items + gaps passed over)).
 */
BatchPlan ScheduleBatches(const model::Problem& problem, int num_items, BatchRule rule,
                          const list::Watch& watch = {});

}  // namespace heteroplace::throughput
