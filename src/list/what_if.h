#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief Makespan of a plan with each one of some tasks (with its group) moved to each device.
 * \param placement [num_tasks]  \param order [num_tasks], a topological order
 * \param moved [num_moved], task ids
 * \return [num_moved][num_devices]; kImpossible where the task may not run or memory overflows.
 */
std::vector<int64_t> WhatIf(const model::Problem& problem, std::span<const int> placement,
                            std::span<const int> order, std::span<const int> moved);

}  // namespace heteroplace::list
