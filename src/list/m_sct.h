#pragma once

#include <span>

#include "list/engine/watch.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief m-SCT (Jeon et al., "Baechi", SoCC 2020, section 3, DOI 10.1145/3419111.3421302): m-ETF in
 * which a device that has finished a task may stay awake, waiting for that task's favourite child.
 *
 * A device is awake while the favourite child of its latest task is ready, not placed, and can
 * start nowhere earlier than there. Ready means that its producers are done, not only placed: what
 * starts before that does not find the device awake. It then runs only that child, or a task that
 * is urgent: one whose start there is the latest of its starts over all devices that have room.
 * Time goes forward, as in the paper's simulation of events: a task that was passed over then is
 * ranked by the end of what its device has, even where it would fit into the gap that waiting left.
 *
 * \param favourite [num_tasks], the favourite child of each task, -1: none; at most one parent
 * each. From a linear programme, see solve/baselines/m_sct_lp.py.
 * Complexity: as MEtf, plus a trial on each device for every task met while a device is awake.
 */
model::NativePlan MSct(const model::Problem& problem, std::span<const int> favourite,
                       const Watch& watch);

}  // namespace heteroplace::list
