#pragma once

#include <span>
#include <utility>
#include <vector>

#include "graph/dag.h"

namespace heteroplace::throughput {

/*! \brief The edges of a graph taken as undirected: (neighbour, edge id) for each node. */
struct Neighbours {
  std::vector<int> offsets;                // [num_nodes + 1]
  std::vector<std::pair<int, int>> pairs;  // [2 num_edges], successors before predecessors

  explicit Neighbours(const graph::Dag& dag);

  int num_nodes() const { return static_cast<int>(offsets.size()) - 1; }
  std::span<const std::pair<int, int>> operator[](int node) const {
    return {pairs.data() + offsets[node], static_cast<size_t>(offsets[node + 1] - offsets[node])};
  }
};

}  // namespace heteroplace::throughput
