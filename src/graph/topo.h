#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/dag.h"

namespace heteroplace::graph {

/*
 * The orders of Celeritas (section 5.1). All three keep a list of nodes whose predecessors are
 * out, and always take its head; they differ in where newly freed nodes enter. Ties go to the
 * lower id. They throw Error(kGraph), naming a cycle, if there is one.
 */

/*! \brief M-TOPO: freed nodes go to the tail. O(n + m). */
std::vector<int> BreadthFirstOrder(const Dag& dag);

/*! \brief DFS-TOPO: freed nodes go to the head. O(n + m). */
std::vector<int> DepthFirstOrder(const Dag& dag);

/*!
 * \brief CPD-TOPO: as DFS-TOPO, and among sources, and among nodes that one node frees, the one on
 * the longest path comes first. O(n log n + m).
 * \param through_ns [num_nodes], length of the longest path through each node: t-level + b-level.
 */
std::vector<int> CriticalPathOrder(const Dag& dag, std::span<const int64_t> through_ns);

}  // namespace heteroplace::graph
