#pragma once

#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief Device of each task by MET: the one with the least run time whose memory has room for
 * the task, its outputs and the copies it reads; without any room the one that lacks least.
 *
 * A group goes where its run times sum to the least. Ties: the lower device id.
 * \param order [num_tasks], topological; who comes first takes the room.
 * \return [num_tasks]; the memories may overflow. Complexity: O(num_devices * (tasks + reads)).
 */
std::vector<int> FastestMapping(const model::Problem& problem, std::span<const int> order);

}  // namespace heteroplace::list
