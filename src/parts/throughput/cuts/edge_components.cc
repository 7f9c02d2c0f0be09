#include "parts/throughput/cuts/edge_components.h"

#include <cstdint>
#include <string>

#include "parts/throughput/cuts/neighbours.h"
#include "support/error.h"

namespace heteroplace::throughput {

namespace {

/*! \brief Edge-disjoint paths between two nodes, found one after another. */
class UnitFlow {
 public:
  explicit UnitFlow(const graph::Dag& dag)
      : neighbours_(dag),
        flow_(static_cast<size_t>(dag.num_edges()), 0),
        reached_by_(static_cast<size_t>(dag.num_nodes()), kUnseen),
        came_from_(static_cast<size_t>(dag.num_nodes()), 0),
        dag_(dag) {}

  int Degree(int node) const { return static_cast<int>(neighbours_[node].size()); }

  /*! \brief Whether k edge-disjoint paths join two nodes. If not, `IsOnSourceSide` tells a cut. */
  bool HasPaths(int source, int sink, int k) {
    for (int edge : touched_) flow_[edge] = 0;
    touched_.clear();
    for (int path = 0; path < k; ++path) {
      if (!Search(source, sink)) return false;
      Augment(source, sink);
    }
    return true;
  }

  /*! \brief After `HasPaths` returned false. */
  bool IsOnSourceSide(int node) const { return reached_by_[node] != kUnseen; }

 private:
  static constexpr int kUnseen = -2;
  static constexpr int kSource = -1;

  /*! \brief Breadth-first over edges that can take one more unit. */
  bool Search(int source, int sink) {
    for (int node : queue_) reached_by_[node] = kUnseen;
    queue_.assign(1, source);
    reached_by_[source] = kSource;
    for (size_t head = 0; head < queue_.size(); ++head) {
      const int node = queue_[head];
      for (const auto& [next, edge] : neighbours_[node]) {
        if (reached_by_[next] != kUnseen || flow_[edge] == Direction(edge, next)) continue;
        reached_by_[next] = edge;
        came_from_[next] = node;
        queue_.push_back(next);
        if (next == sink) return true;
      }
    }
    return false;
  }

  void Augment(int source, int sink) {
    for (int node = sink; node != source; node = came_from_[node]) {
      const int edge = reached_by_[node];
      flow_[edge] = static_cast<int8_t>(flow_[edge] + Direction(edge, node));
      touched_.push_back(edge);
    }
  }

  /*! \brief The sign of flow over an edge towards one of its ends. */
  int8_t Direction(int edge, int end) const {
    return dag_.successors.values[edge] == end ? int8_t{1} : int8_t{-1};
  }

  Neighbours neighbours_;
  std::vector<int8_t> flow_;     // [num_edges], along the edge's direction: -1, 0 or 1
  std::vector<int> reached_by_;  // [num_nodes], edge of the latest search, kSource or kUnseen
  std::vector<int> came_from_;   // [num_nodes]
  std::vector<int> queue_;       // nodes of the latest search
  std::vector<int> touched_;     // edges whose flow may not be 0
  const graph::Dag& dag_;
};

}  // namespace

std::vector<int> EdgeConnectedComponents(const graph::Dag& dag, int k) {
  if (k < 1) {
    throw Error(ErrorKind::kGraph, "components are to be joined by " + std::to_string(k) +
                                       " edges; expected at least 1");
  }
  UnitFlow flow(dag);
  const int nodes = dag.num_nodes();
  // A node that waits is parted from every leader but its own by a small cut that was found. A
  // node that was looked at either has no such cut from its leader or leads itself.
  std::vector<int> leader(static_cast<size_t>(nodes), -1);
  int first = -1;
  for (int node = 0; node < nodes; ++node) {
    if (flow.Degree(node) < k) {
      leader[node] = node;  // Its own edges are a small cut.
    } else if (first < 0) {
      first = leader[node] = node;
    } else {
      leader[node] = first;
    }
  }
  for (int node = 0; node < nodes; ++node) {
    const int other = leader[node];
    if (other == node || flow.HasPaths(node, other, k)) continue;
    for (int waiting = node; waiting < nodes; ++waiting) {
      if (leader[waiting] == other && flow.IsOnSourceSide(waiting)) leader[waiting] = node;
    }
  }
  std::vector<int> number(static_cast<size_t>(nodes), -1);
  int count = 0;
  for (int node = 0; node < nodes; ++node) {
    int& of_leader = number[leader[node]];
    if (of_leader < 0) of_leader = count++;
    leader[node] = of_leader;
  }
  return leader;
}

}  // namespace heteroplace::throughput
