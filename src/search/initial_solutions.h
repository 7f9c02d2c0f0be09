#pragma once

#include <span>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"
#include "search/module_annealing.h"
#include "search/search.h"

namespace heteroplace {

/*!
 * \brief Puts groups on one device each; a start without an order becomes one for each rule of list
 * scheduling: branch by branch, and by upward rank.
 */
std::vector<SearchStart> CompleteStarts(const Problem& problem,
                                        const std::vector<SearchStart>& starts);

/*!
 * \brief The part of a plan for one piece, with local ids.
 * \param position [num_tasks], of each task in the plan's order
 */
Layout PartOf(const Chain& chain, const SearchStart& start, std::span<const int> position,
              int piece);

}  // namespace heteroplace
