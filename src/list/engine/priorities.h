#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "list/engine/list_parts.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief A number for each task, [num_tasks]; of the ready ones the highest goes next. For the
 * priorities up to kLookahead: those behind it depend on what is placed.
 * \param devices [num_tasks], where each task may go.
 */
std::vector<double> Priorities(const model::Problem& problem, Priority priority,
                               std::span<const uint8_t> preferred, const model::Csr& devices);

/*!
 * \brief The tasks of a critical path (CPoP): the entry task of highest upward + downward rank, its
 * reader of highest, and so on.
 */
std::vector<int> CriticalPath(const model::Problem& problem, std::span<const uint8_t> preferred,
                              const model::Csr& devices);

/*!
 * \brief Optimistic cost table in ns, [num_tasks][num_memories] (PEFT, equation 3): the longest of
 * the paths to the end if every task on them is where that is shortest and waits for nothing, for a
 * task in a memory.
 */
std::vector<double> OptimisticCosts(const model::Problem& problem,
                                    std::span<const uint8_t> preferred, const model::Csr& devices);

}  // namespace heteroplace::list
