#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/dag.h"

namespace heteroplace::graph {

/*! \brief Lengths of the longest paths to and from each node, in ns. */
struct Levels {
  std::vector<int64_t> tlevel_ns;  // [num_nodes], to the start of the node; 0 for sources
  std::vector<int64_t> blevel_ns;  // [num_nodes], from the start of the node, itself included
};

/*!
 * \brief t-level and b-level (Celeritas, equations 1 and 2). O(n + m).
 * \param node_ns [num_nodes], run times. \param edge_ns [num_edges], transfer times.
 * Throws Error(kGraph) on a cycle or on sizes that disagree.
 */
Levels ComputeLevels(const Dag& dag, std::span<const int64_t> node_ns,
                     std::span<const int64_t> edge_ns);

/*!
 * \brief Nodes of a longest path from a source to a sink, in order; ties: the lower id.
 * Empty for an empty graph. The arguments are those of `ComputeLevels` and its result.
 */
std::vector<int> CriticalPath(const Dag& dag, const Levels& levels,
                              std::span<const int64_t> node_ns, std::span<const int64_t> edge_ns);

}  // namespace heteroplace::graph
