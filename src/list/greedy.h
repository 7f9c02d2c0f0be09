#pragma once

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief Greedy (the baseline of DiviML, section V, DOI 10.48550/arXiv.2308.00127): in topological
 * order (by id) each task goes where the latency of all that is scheduled so far stays least.
 *
 * Ties, frequent since most tasks do not move the end: earlier finish, then fewer units, then the
 * lower device id.
 */
model::NativePlan Greedy(const model::Problem& problem);

}  // namespace heteroplace::list
