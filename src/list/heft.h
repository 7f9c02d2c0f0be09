#pragma once

#include <cstdint>
#include <span>

#include "list/watch.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief HEFT (Topcuoglu et al. 2002, section 4.2, DOI 10.1109/71.993206) with insertion, on
 * devices that share units and links that share channels.
 *
 * Tasks go in order of upward rank (mean run time, plus the largest mean transfer + rank of a
 * reader); each takes the device where it finishes first. Unlike the paper: a transfer reserves
 * the channels of its route and is shared by all readers in its memory; a device is a candidate
 * only while its memory has room; an output that must go to the host adds that transfer to the
 * finish it is judged by. Ties: fewer units, then the lower device id.
 *
 * \param preferred [num_devices], 0 keeps a device for the tasks that no preferred one can run.
 * \return A plan; violation > 0 where no device had room or could be reached.
 * Complexity: O((num_tasks * num_devices + reads * num_devices) * log).
 */
model::NativePlan Heft(const model::Problem& problem, std::span<const uint8_t> preferred,
                       const Watch& watch);

}  // namespace heteroplace::list
