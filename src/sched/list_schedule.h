#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/problem.h"
#include "sched/schedule.h"

namespace heteroplace {

/*!
 * \brief HEFT (Topcuoglu et al. 2002, section 4.2) with insertion, on devices that share units and
 * links that share channels.
 *
 * Tasks go in order of upward rank (mean run time, plus the largest mean transfer + rank of a
 * reader); each takes the device where it finishes first. Unlike the paper: a transfer reserves
 * the channels of its route and is shared by all readers in its memory; a device is a candidate
 * only while its memory has room; an output that must go to the host adds that transfer to the
 * finish it is judged by. Ties: fewer units, then the lower device id.
 *
 * \param preferred [num_devices], 0 keeps a device for the tasks that no preferred one can run.
 * \return A schedule; violation > 0 where no device had room or could be reached.
 * Complexity: O(num_tasks * num_devices * (reads + gaps passed over)).
 */
Schedule Heft(const Problem& problem, std::span<const uint8_t> preferred);

/*!
 * \brief Schedules a given placement: of the tasks whose producers are done, the one of highest
 * priority goes next, into the first gap that holds it.
 *
 * \param device [num_tasks]; every task must be allowed there.
 * \param priority [num_tasks]; ties by task id.
 */
Schedule ListSchedule(const Problem& problem, std::span<const int> device,
                      std::span<const double> priority);

/*! \brief Upward ranks in ns, [num_tasks], by means over the preferred devices of each task. */
std::vector<double> UpwardRanks(const Problem& problem, std::span<const uint8_t> preferred);

}  // namespace heteroplace
