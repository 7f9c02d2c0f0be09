#include "graph/dag.h"

#include <algorithm>
#include <utility>

#include "support/error.h"

namespace heteroplace::graph {

namespace {

constexpr int kNone = -1;

}  // namespace

Dag::Dag(model::Csr successor_lists) : successors(std::move(successor_lists)) {
  const int nodes = num_nodes();
  std::vector<int>& offsets = predecessors.offsets;
  offsets.assign(static_cast<size_t>(nodes) + 1, 0);
  for (int next : successors.values) {
    if (next < 0 || next >= nodes) {
      throw Error(ErrorKind::kGraph, "an edge leads to node " + std::to_string(next) +
                                         "; expected 0 to " + std::to_string(nodes - 1));
    }
    ++offsets[next + 1];
  }
  for (int node = 0; node < nodes; ++node) offsets[node + 1] += offsets[node];
  predecessors.values.resize(successors.values.size());
  incoming.resize(successors.values.size());
  std::vector<int> filled(offsets.begin(), offsets.end() - 1);
  for (int node = 0; node < nodes; ++node) {
    for (int edge = EdgeBegin(node); edge < EdgeEnd(node); ++edge) {
      const int at = filled[successors.values[edge]]++;
      predecessors.values[at] = node;
      incoming[at] = edge;
    }
  }
}

std::vector<int> FindCycle(const Dag& dag) {
  enum : uint8_t { kNew, kOnPath, kDone };
  std::vector<uint8_t> state(static_cast<size_t>(dag.num_nodes()), kNew);
  std::vector<int> next_edge(dag.successors.offsets.begin(), dag.successors.offsets.end() - 1);
  std::vector<int> path;
  for (int root = 0; root < dag.num_nodes(); ++root) {
    if (state[root] != kNew) continue;
    path.assign(1, root);
    state[root] = kOnPath;
    while (!path.empty()) {
      const int node = path.back();
      if (next_edge[node] == dag.EdgeEnd(node)) {
        state[node] = kDone;
        path.pop_back();
        continue;
      }
      const int next = dag.successors.values[next_edge[node]++];
      if (state[next] == kOnPath) return {std::ranges::find(path, next), path.end()};
      if (state[next] == kNew) {
        state[next] = kOnPath;
        path.push_back(next);
      }
    }
  }
  return {};
}

std::vector<int> StrongComponents(const Dag& dag) {
  const auto nodes = static_cast<size_t>(dag.num_nodes());
  std::vector<int> found(nodes, kNone), low(nodes, 0), component(nodes, kNone);
  std::vector<int> next_edge(dag.successors.offsets.begin(), dag.successors.offsets.end() - 1);
  std::vector<int> path, open;  // open: found, but its component is not known yet
  int num_found = 0;
  int num_components = 0;
  const auto enter = [&](int node) {
    found[node] = low[node] = num_found++;
    path.push_back(node);
    open.push_back(node);
  };
  for (int root = 0; root < dag.num_nodes(); ++root) {
    if (found[root] == kNone) enter(root);
    while (!path.empty()) {
      const int node = path.back();
      if (next_edge[node] < dag.EdgeEnd(node)) {
        const int next = dag.successors.values[next_edge[node]++];
        if (found[next] == kNone) {
          enter(next);
        } else if (component[next] == kNone) {
          low[node] = std::min(low[node], found[next]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back()] = std::min(low[path.back()], low[node]);
      if (low[node] != found[node]) continue;
      while (component[node] == kNone) {
        component[open.back()] = num_components;
        open.pop_back();
      }
      ++num_components;
    }
  }
  // A component is complete after all that it leads to.
  for (int& number : component) number = num_components - 1 - number;
  return component;
}

void ThrowCycle(const Dag& dag) {
  const std::vector<int> cycle = FindCycle(dag);
  std::string text;
  for (int node : cycle) text += std::to_string(node) + " -> ";
  text += cycle.empty() ? "none" : std::to_string(cycle.front());
  throw Error(ErrorKind::kGraph, "the graph has a cycle: " + text + "; expected an acyclic graph");
}

Dag Quotient(const Dag& dag, std::span<const int> group_of, int num_groups) {
  if (group_of.size() != static_cast<size_t>(dag.num_nodes())) {
    throw Error(ErrorKind::kGraph, "a partition has " + std::to_string(group_of.size()) +
                                       " entries; expected one for each of " +
                                       std::to_string(dag.num_nodes()) + " nodes");
  }
  std::vector<std::vector<int>> members(static_cast<size_t>(num_groups));
  for (int node = 0; node < dag.num_nodes(); ++node) {
    if (group_of[node] < 0 || group_of[node] >= num_groups) {
      throw Error(ErrorKind::kGraph, "node " + std::to_string(node) + " is in group " +
                                         std::to_string(group_of[node]) + "; expected 0 to " +
                                         std::to_string(num_groups - 1));
    }
    members[group_of[node]].push_back(node);
  }
  model::Csr rows;
  std::vector<int> last_seen(static_cast<size_t>(num_groups), kNone);
  std::vector<int> row;
  for (int group = 0; group < num_groups; ++group) {
    row.clear();
    for (int node : members[group]) {
      for (int next : dag.successors[node]) {
        const int other = group_of[next];
        if (other == group || last_seen[other] == group) continue;
        last_seen[other] = group;
        row.push_back(other);
      }
    }
    std::ranges::sort(row);
    rows.AddRow(row);
  }
  return Dag(std::move(rows));
}

}  // namespace heteroplace::graph
