#pragma once

#include "model/problem.h"
#include "search/piece.h"

namespace heteroplace {

/*!
 * \brief Groups of tasks that are worth moving together: what hangs between a fork and its join.
 *
 * Tasks of many neighbours (forks and joins) are left out; the connected rest falls into branches,
 * at several limits of "many". A branch of 2 to half of all tasks is kept, each once. Tasks of a
 * branch are in topological order.
 *
 * \return [num_branches], task ids. Complexity: O(limits * (tasks + reads)).
 */
Csr FindBranches(const Piece& piece);

}  // namespace heteroplace
