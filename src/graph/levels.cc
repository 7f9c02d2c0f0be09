#include "graph/levels.h"

#include <algorithm>
#include <limits>
#include <string>

#include "graph/topo.h"
#include "support/error.h"

namespace heteroplace::graph {

Levels ComputeLevels(const Dag& dag, std::span<const int64_t> node_ns,
                     std::span<const int64_t> edge_ns) {
  const auto nodes = static_cast<size_t>(dag.num_nodes());
  if (node_ns.size() != nodes || edge_ns.size() != static_cast<size_t>(dag.num_edges())) {
    throw Error(ErrorKind::kGraph, "weights are given for " + std::to_string(node_ns.size()) +
                                       " nodes and " + std::to_string(edge_ns.size()) +
                                       " edges; expected " + std::to_string(nodes) + " and " +
                                       std::to_string(dag.num_edges()));
  }
  const std::vector<int> order = BreadthFirstOrder(dag);
  Levels levels{std::vector<int64_t>(nodes, 0), std::vector<int64_t>(nodes, 0)};
  for (int node : order) {
    const int64_t finish = levels.tlevel_ns[node] + node_ns[node];
    for (int edge = dag.EdgeBegin(node); edge < dag.EdgeEnd(node); ++edge) {
      int64_t& start = levels.tlevel_ns[dag.successors.values[edge]];
      start = std::max(start, finish + edge_ns[edge]);
    }
  }
  for (size_t index = order.size(); index-- > 0;) {
    const int node = order[index];
    int64_t tail = 0;
    for (int edge = dag.EdgeBegin(node); edge < dag.EdgeEnd(node); ++edge) {
      tail = std::max(tail, edge_ns[edge] + levels.blevel_ns[dag.successors.values[edge]]);
    }
    levels.blevel_ns[node] = node_ns[node] + tail;
  }
  return levels;
}

std::vector<int> CriticalPath(const Dag& dag, const Levels& levels,
                              std::span<const int64_t> node_ns, std::span<const int64_t> edge_ns) {
  std::vector<int> path;
  int64_t longest = std::numeric_limits<int64_t>::min();
  int node = -1;
  for (int source = 0; source < dag.num_nodes(); ++source) {
    if (!dag.predecessors[source].empty() || levels.blevel_ns[source] <= longest) continue;
    longest = levels.blevel_ns[source];
    node = source;
  }
  while (node >= 0) {
    path.push_back(node);
    const int64_t rest = levels.blevel_ns[node] - node_ns[node];
    int next = -1;
    for (int edge = dag.EdgeBegin(node); edge < dag.EdgeEnd(node); ++edge) {
      const int other = dag.successors.values[edge];
      if (edge_ns[edge] + levels.blevel_ns[other] == rest && (next < 0 || other < next)) {
        next = other;
      }
    }
    node = next;
  }
  return path;
}

}  // namespace heteroplace::graph
