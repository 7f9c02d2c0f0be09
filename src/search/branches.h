#pragma once

#include <vector>

#include "decompose/module.h"
#include "model/problem.h"

namespace heteroplace::search {

/*! \brief Groups of tasks that are moved together, and which of them are alike. */
struct Branches {
  model::Csr tasks;       // [num_branches], in topological order
  std::vector<int> kind;  // [num_branches]; equal: task by task the same times and tensors
  model::Csr of_kind;     // [num_kinds], branches
};

/*!
 * \brief Groups of tasks that are worth moving together: what hangs between a fork and its join.
 *
 * Tasks of many neighbours (forks and joins) are left out; the connected rest falls into branches,
 * at several limits of "many". A branch of 2 to half of all tasks is kept, each once. Tasks of a
 * branch are in topological order.
 *
 * Complexity: O(limits * (tasks + reads)).
 */
Branches FindBranches(const decompose::Module& module);

}  // namespace heteroplace::search
