#include "parts/throughput/cuts/neighbours.h"

namespace heteroplace::throughput {

Neighbours::Neighbours(const graph::Dag& dag)
    : offsets(static_cast<size_t>(dag.num_nodes()) + 1, 0) {
  pairs.reserve(2 * static_cast<size_t>(dag.num_edges()));
  for (int node = 0; node < dag.num_nodes(); ++node) {
    for (int edge = dag.EdgeBegin(node); edge < dag.EdgeEnd(node); ++edge) {
      pairs.emplace_back(dag.successors.values[edge], edge);
    }
    const std::span<const int> edges = dag.IncomingEdges(node);
    const std::span<const int> sources = dag.predecessors[node];
    for (size_t index = 0; index < edges.size(); ++index) {
      pairs.emplace_back(sources[index], edges[index]);
    }
    offsets[node + 1] = static_cast<int>(pairs.size());
  }
}

}  // namespace heteroplace::throughput
