#pragma once

#include <span>

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief Order-Place (Celeritas, section 5.3, DOI 10.48550/arXiv.2208.00184): fills one memory
 * after the other in the given order, CPD-TOPO there, in which neighbours stay together. Tasks then
 * run in that order.
 *
 * Unlike the paper: received copies count as memory; devices of one memory share its tasks; where
 * no later memory has room, tasks go back to an earlier one. Where tensors count by lifetime, the
 * paper's sum over all nodes would fill every memory in the forward pass of a training step, and
 * the rest would alternate between full memories. So tensors count while they live; a memory that
 * still overflows is filled again, by what it lacked less.
 *
 * \param order [num_tasks], a topological order
 */
model::NativePlan OrderPlace(const model::Problem& problem, std::span<const int> order);

}  // namespace heteroplace::list
