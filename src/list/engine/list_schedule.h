#pragma once

#include <span>

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief Schedules a given placement: of the tasks whose producers are done, the one of highest
 * priority goes next, into the first gap that holds it.
 *
 * \param device [num_tasks]; every task must be allowed there.
 * \param priority [num_tasks]; ties by task id.
 */
model::NativePlan ListSchedule(const model::Problem& problem, std::span<const int> device,
                               std::span<const double> priority);

}  // namespace heteroplace::list
