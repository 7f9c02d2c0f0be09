#pragma once

#include <vector>

#include "model/problem.h"

namespace heteroplace::search {

/*!
 * \brief A topological order that finishes one thing before it begins the next: depth first from
 * the sinks towards the sources, a task after its producers.
 *
 * Of a fork of many branches the first branch comes whole before the second, so that its result can
 * travel early; orders by rank take all first tasks, then all second ones. O(tasks + reads).
 */
std::vector<int> PostOrder(const model::Problem& problem);

}  // namespace heteroplace::search
