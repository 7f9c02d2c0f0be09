#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.h"

namespace heteroplace::throughput {

/*! \brief Where a graph, its edges taken as undirected, falls apart. */
struct Cuts {
  std::vector<uint8_t> is_articulation;  // [num_nodes]: without it there are more components
  std::vector<uint8_t> is_bridge;        // [num_edges]: without it there are more components
  std::vector<int> component;            // [num_nodes], what is left without the bridges;
                                         // numbered by the lowest node id inside
  int num_components = 0;
};

/*! \brief Articulation points and bridges by low-links (Tarjan 1974), without recursion. O(n + m).
 */
Cuts FindCuts(const graph::Dag& dag);

}  // namespace heteroplace::throughput
