#pragma once

#include <span>

#include "list/engine/watch.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief Adjusting Placement (Celeritas, section 5.3, algorithm 2, DOI 10.48550/arXiv.2208.00184):
 * tasks go in the given order, CPD-TOPO there, and stay on the device of the task before unless
 * another is worth the way back.
 *
 * A task leaves if its finish elsewhere plus `back`, the longest transfer of what it makes to where
 * it would have stayed, is less (strictly) than its finish there. Transfers take slots of all that
 * their route occupies (the paper's send and receive tasks); tasks fit into gaps. A group goes
 * where its first task goes, with the memory of the whole group. When no device has room the one
 * whose memory is least full, relative to its size, takes the task: the plan is overcommitted
 * (violation > 0).
 *
 * Unlike the paper: finishes are compared, not starts, which is the same on equal devices; `prev`
 * begins as the device that would run all tasks in least time.
 *
 * \param order [num_tasks], a topological order
 */
model::NativePlan AdjustingPlacement(const model::Problem& problem, std::span<const int> order,
                                     const Watch& watch);

}  // namespace heteroplace::list
