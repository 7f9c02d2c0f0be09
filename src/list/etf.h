#pragma once

#include "list/watch.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief ETF (Hwang, Chow, Anger, Lee 1989, section 3, DOI 10.1137/0218016): of all ready tasks and
 * devices the pair that finishes first goes next; ties: larger upward rank, then less run time,
 * lower task and device ids.
 *
 * Unlike the paper, whose processors are equal, pairs are ranked by finish, not by start: on
 * unrelated devices the earliest start sends long tasks to slow devices that happen to be idle.
 * Pairs without room in memory come after all others.
 *
 * \param devices [num_tasks], where each task may go.
 * Complexity: O(reads * num_devices * log) unless many pairs wait for one link.
 */
model::NativePlan Etf(const model::Problem& problem, const model::Csr& devices, const Watch& watch);

}  // namespace heteroplace::list
