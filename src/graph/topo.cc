#include "graph/topo.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace heteroplace::graph {

namespace {

/*! \brief Number of predecessors of each node that are not out yet. */
std::vector<int> CountWaiting(const Dag& dag) {
  std::vector<int> waiting(static_cast<size_t>(dag.num_nodes()));
  for (int node = 0; node < dag.num_nodes(); ++node) {
    waiting[node] = static_cast<int>(dag.predecessors[node].size());
  }
  return waiting;
}

/*!
 * \brief Takes nodes from the head of a list whose head is the end of `stack`.
 * \param arrange Sorts nodes into the order in which they are to be pushed: the last comes first.
 */
template <typename Arrange>
std::vector<int> HeadOrder(const Dag& dag, const Arrange& arrange) {
  std::vector<int> waiting = CountWaiting(dag);
  std::vector<int> order, stack, freed;
  order.reserve(waiting.size());
  for (int node = 0; node < dag.num_nodes(); ++node) {
    if (waiting[node] == 0) stack.push_back(node);
  }
  arrange(stack);
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    order.push_back(node);
    freed.clear();
    for (int next : dag.successors[node]) {
      if (--waiting[next] == 0) freed.push_back(next);
    }
    arrange(freed);
    stack.insert(stack.end(), freed.begin(), freed.end());
  }
  if (order.size() < waiting.size()) ThrowCycle(dag);
  return order;
}

}  // namespace

std::vector<int> BreadthFirstOrder(const Dag& dag) {
  std::vector<int> waiting = CountWaiting(dag);
  std::vector<int> order, freed;
  order.reserve(waiting.size());
  for (int node = 0; node < dag.num_nodes(); ++node) {
    if (waiting[node] == 0) order.push_back(node);
  }
  // The list is the part of `order` that has not been walked yet.
  for (size_t head = 0; head < order.size(); ++head) {
    freed.clear();
    for (int next : dag.successors[order[head]]) {
      if (--waiting[next] == 0) freed.push_back(next);
    }
    std::ranges::sort(freed);
    order.insert(order.end(), freed.begin(), freed.end());
  }
  if (order.size() < waiting.size()) ThrowCycle(dag);
  return order;
}

std::vector<int> DepthFirstOrder(const Dag& dag) {
  return HeadOrder(dag, [](std::vector<int>& nodes) {
    std::ranges::sort(nodes, [](int a, int b) { return a > b; });
  });
}

std::vector<int> CriticalPathOrder(const Dag& dag, std::span<const int64_t> through_ns) {
  if (through_ns.size() != static_cast<size_t>(dag.num_nodes())) {
    throw Error(ErrorKind::kGraph, "path lengths are given for " +
                                       std::to_string(through_ns.size()) + " nodes; expected " +
                                       std::to_string(dag.num_nodes()));
  }
  return HeadOrder(dag, [through_ns](std::vector<int>& nodes) {
    std::ranges::sort(nodes, [through_ns](int a, int b) {
      return through_ns[a] != through_ns[b] ? through_ns[a] < through_ns[b] : a > b;
    });
  });
}

}  // namespace heteroplace::graph
