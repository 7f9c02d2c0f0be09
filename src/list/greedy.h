#pragma once

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace {

/*!
 * \brief Greedy (the baseline of DiviML, section V): in topological order (by id) each task goes
 * where the latency of all that is scheduled so far stays least.
 *
 * Ties, frequent since most tasks do not move the end: earlier finish, then fewer units, then the
 * lower device id.
 */
Schedule Greedy(const Problem& problem);

}  // namespace heteroplace
