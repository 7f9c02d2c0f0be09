#include "parts/throughput/cuts/prefix_cuts.h"

#include <algorithm>
#include <string>

#include "graph/breakpoints.h"
#include "support/error.h"

namespace heteroplace::throughput {

namespace {

/*!
 * \brief For a cut position q, the open cut p with the least cost(p) + (q - p - target)^2.
 *
 * Two such parabolas of q differ by a line, so they meet once, and a Li Chao tree over the
 * positions finds the least of all in O(log n). Equal values go to the smaller p, which is the
 * same as adding p times an infinitely small number, so that they still meet once.
 */
class OpenCuts {
 public:
  OpenCuts(int num_positions, int64_t target, const std::vector<int64_t>& cost)
      : last_(num_positions), target_(target), cost_(cost) {
    tree_.assign(4 * (static_cast<size_t>(num_positions) + 1), -1);
  }

  void Add(int cut) { Add(cut, 1, 0, last_); }

  /*! \brief The best open cut before `position`, or -1. */
  int Best(int position) const {
    int best = -1;
    size_t node = 1;
    int low = 0;
    int high = last_;
    while (true) {
      if (IsBetter(tree_[node], best, position)) best = tree_[node];
      if (low == high) return best;
      const int middle = low + (high - low) / 2;
      node *= 2;
      if (position <= middle) {
        high = middle;
      } else {
        low = middle + 1;
        ++node;
      }
    }
  }

  int64_t Value(int cut, int position) const {
    const int64_t excess = position - cut - target_;
    return cost_[cut] + excess * excess;
  }

 private:
  bool IsBetter(int cut, int other, int position) const {
    if (cut < 0 || other < 0) return cut >= 0;
    const int64_t mine = Value(cut, position);
    const int64_t theirs = Value(other, position);
    return mine != theirs ? mine < theirs : cut < other;
  }

  void Add(int cut, size_t node, int low, int high) {
    const int middle = low + (high - low) / 2;
    if (IsBetter(cut, tree_[node], middle)) std::swap(cut, tree_[node]);
    if (cut < 0 || low == high) return;
    if (IsBetter(cut, tree_[node], low)) {
      Add(cut, 2 * node, low, middle);
    } else if (IsBetter(cut, tree_[node], high)) {
      Add(cut, 2 * node + 1, middle + 1, high);
    }
  }

  int last_;
  int64_t target_;
  const std::vector<int64_t>& cost_;  // [num_positions + 1]
  std::vector<int> tree_;             // cut in each node of the tree, -1: none
};

/*! \brief Where each cut is crossed. */
struct Crossings {
  std::vector<int> count;     // [num_nodes + 1], edges across a cut before this position
  std::vector<int> farthest;  // [num_nodes + 1], the last position that they reach; 0: none
};

Crossings CountCrossings(const graph::Dag& dag, const std::vector<int>& position) {
  const size_t size = position.size() + 1;
  Crossings crossings{std::vector<int>(size, 0), std::vector<int>(size, 0)};
  for (int node = 0; node < dag.num_nodes(); ++node) {
    const int from = position[node] + 1;
    for (int next : dag.successors[node]) {
      const int to = position[next];
      ++crossings.count[from];
      --crossings.count[to + 1];
      crossings.farthest[from] = std::max(crossings.farthest[from], to);
    }
  }
  for (size_t cut = 1; cut < size; ++cut) {
    crossings.count[cut] += crossings.count[cut - 1];
    crossings.farthest[cut] = std::max(crossings.farthest[cut], crossings.farthest[cut - 1]);
  }
  return crossings;
}

}  // namespace

PrefixCuts BalancedPrefixCuts(const graph::Dag& dag, std::span<const int> order,
                              const PrefixCutRules& rules) {
  const std::vector<int> position = graph::Positions(dag, order);
  const int nodes = dag.num_nodes();
  if (rules.is_allowed.size() != order.size() || rules.max_channels < 0 || rules.min_nodes < 1) {
    throw Error(ErrorKind::kGraph, "the rules of prefix cuts do not fit a graph of " +
                                       std::to_string(nodes) + " nodes");
  }
  PrefixCuts cuts;
  if (nodes == 0) return cuts;
  const Crossings crossings = CountCrossings(dag, position);
  std::vector<int64_t> cost(static_cast<size_t>(nodes) + 1, 0);
  std::vector<int> preceding(static_cast<size_t>(nodes) + 1, -1);
  std::vector<std::vector<int>> opens(static_cast<size_t>(nodes) + 1);
  OpenCuts open(nodes, rules.target_nodes, cost);
  const auto open_later = [&](int cut) {
    // The next cut comes after the end of every edge across this one.
    const int64_t first =
        std::max<int64_t>(crossings.farthest[cut] + int64_t{1}, cut + rules.min_nodes);
    if (first <= nodes) opens[first].push_back(cut);
  };
  open_later(0);
  if (rules.min_nodes > nodes) opens[nodes].push_back(0);
  for (int cut = 1; cut <= nodes; ++cut) {
    for (int ready : opens[cut]) open.Add(ready);
    const bool is_end = cut == nodes;
    if (!is_end && (rules.is_allowed[cut] == 0 || crossings.count[cut] > rules.max_channels)) {
      continue;
    }
    const int best = open.Best(cut);
    if (best < 0) continue;
    cost[cut] = open.Value(best, cut);
    preceding[cut] = best;
    if (!is_end) open_later(cut);
  }
  for (int cut = preceding[nodes]; cut >= 0; cut = preceding[cut]) cuts.starts.push_back(cut);
  std::ranges::reverse(cuts.starts);
  cuts.cost = cost[nodes];
  return cuts;
}

}  // namespace heteroplace::throughput
