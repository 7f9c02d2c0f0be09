#pragma once

#include <functional>
#include <span>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"
#include "search/moves/module_annealing.h"
#include "search/search.h"

namespace heteroplace::search {

/*!
 * \brief Puts groups on one device each; an initial solution without an order becomes one for each
 * rule of list scheduling: branch by branch, and by upward rank.
 */
std::vector<InitialSolution> CompleteSolutions(const model::Problem& problem,
                                               const std::vector<InitialSolution>& initial);

/*!
 * \brief What live tensors of the best solution that fits need in each memory beside weights and
 * workspaces, [num_memories] bytes; 0 if none fits.
 * \param is_late Asked before each solution; true: the others are left out.
 */
std::vector<int64_t> LiveReserve(const model::Problem& problem,
                                 const std::vector<InitialSolution>& complete,
                                 const std::function<bool()>& is_late);

/*!
 * \brief The part of a plan for one module, with local ids.
 * \param position [num_tasks], of each task in the plan's order
 */
Layout LayoutOf(const decompose::Modules& modules, const InitialSolution& start,
                std::span<const int> position, int module);

}  // namespace heteroplace::search
