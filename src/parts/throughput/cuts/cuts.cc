#include "parts/throughput/cuts/cuts.h"

#include <algorithm>

#include "parts/throughput/cuts/neighbours.h"

namespace heteroplace::throughput {

namespace {

/*! \brief One depth-first walk over all components of the undirected graph. */
class LowLinks {
 public:
  LowLinks(const Neighbours& neighbours, Cuts* cuts)
      : neighbours_(neighbours),
        cuts_(cuts),
        found_(static_cast<size_t>(neighbours.num_nodes()), -1),
        low_(static_cast<size_t>(neighbours.num_nodes()), 0),
        cursor_(neighbours.offsets.begin(), neighbours.offsets.end() - 1) {
    for (int root = 0; root < neighbours.num_nodes(); ++root) {
      if (found_[root] < 0) Walk(root);
    }
  }

 private:
  /*! \brief A node on the path from the root, and the edge by which it was reached. */
  struct Step {
    int node;
    int edge;
  };

  void Walk(int root) {
    int root_branches = 0;
    path_.assign(1, {root, -1});
    found_[root] = low_[root] = next_number_++;
    while (!path_.empty()) {
      const Step step = path_.back();
      if (cursor_[step.node] < neighbours_.offsets[step.node + 1]) {
        const auto [next, edge] = neighbours_.pairs[cursor_[step.node]++];
        if (edge == step.edge) continue;  // Only this edge: a parallel one is a second way back.
        if (found_[next] >= 0) {
          low_[step.node] = std::min(low_[step.node], found_[next]);
          continue;
        }
        found_[next] = low_[next] = next_number_++;
        path_.push_back({next, edge});
        continue;
      }
      path_.pop_back();
      if (path_.empty()) break;
      const int parent = path_.back().node;
      low_[parent] = std::min(low_[parent], low_[step.node]);
      if (low_[step.node] > found_[parent]) cuts_->is_bridge[step.edge] = 1;
      if (parent == root) {
        ++root_branches;
      } else if (low_[step.node] >= found_[parent]) {
        cuts_->is_articulation[parent] = 1;
      }
    }
    if (root_branches > 1) cuts_->is_articulation[root] = 1;
  }

  const Neighbours& neighbours_;
  Cuts* cuts_;
  std::vector<int> found_;   // [num_nodes], number in order of the walk, -1: not yet
  std::vector<int> low_;     // [num_nodes], lowest number reached from below
  std::vector<int> cursor_;  // [num_nodes], next entry of `pairs`
  std::vector<Step> path_;
  int next_number_ = 0;
};

void NumberComponents(const Neighbours& neighbours, Cuts* cuts) {
  std::vector<int> stack;
  for (int root = 0; root < neighbours.num_nodes(); ++root) {
    if (cuts->component[root] >= 0) continue;
    const int number = cuts->num_components++;
    cuts->component[root] = number;
    stack.assign(1, root);
    while (!stack.empty()) {
      const int node = stack.back();
      stack.pop_back();
      for (const auto& [next, edge] : neighbours[node]) {
        if (cuts->is_bridge[edge] != 0 || cuts->component[next] >= 0) continue;
        cuts->component[next] = number;
        stack.push_back(next);
      }
    }
  }
}

}  // namespace

Cuts FindCuts(const graph::Dag& dag) {
  const auto nodes = static_cast<size_t>(dag.num_nodes());
  Cuts cuts;
  cuts.is_articulation.assign(nodes, 0);
  cuts.is_bridge.assign(static_cast<size_t>(dag.num_edges()), 0);
  cuts.component.assign(nodes, -1);
  const Neighbours neighbours(dag);
  const LowLinks walk(neighbours, &cuts);
  NumberComponents(neighbours, &cuts);
  return cuts;
}

}  // namespace heteroplace::throughput
