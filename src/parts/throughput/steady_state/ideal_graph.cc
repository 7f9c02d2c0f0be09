#include "parts/throughput/steady_state/ideal_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "graph/dag.h"

namespace heteroplace::throughput {

IdealGraph::IdealGraph(const model::Problem& problem) {
  FindNodes(problem);
  FindPassed(problem);
}

void IdealGraph::FindNodes(const model::Problem& problem) {
  const int count = problem.num_tasks;
  std::vector<int> first(static_cast<size_t>(count));
  std::iota(first.begin(), first.end(), 0);
  for (int group = 0; group < problem.num_groups; ++group) {
    for (int task : problem.group_tasks[group]) first[task] = problem.group_tasks[group][0];
  }
  std::vector<std::pair<int, int>> edges;
  for (int task = 0; task < count; ++task) {
    for (int from : problem.predecessors[task]) {
      if (first[from] != first[task]) edges.emplace_back(first[from], first[task]);
    }
  }
  std::vector<std::vector<int>> rows(static_cast<size_t>(count));
  for (const auto& [from, to] : edges) rows[from].push_back(to);
  model::Csr successors;
  for (const std::vector<int>& row : rows) successors.AddRow(row);
  std::vector<int> component = graph::StrongComponents(graph::Dag(std::move(successors)));
  std::vector<int> size(static_cast<size_t>(count), 0);
  for (int task = 0; task < count; ++task) ++size[component[first[task]]];
  if (count > 1 && 2 * *std::ranges::max_element(size) > count) {
    std::erase_if(edges, [](const auto& edge) { return edge.first > edge.second; });
    component = first;
  }
  // Names rise along edges: those of components, and first tasks where edges were left out.
  std::map<int, std::vector<int>> members;
  for (int task = 0; task < count; ++task) members[component[first[task]]].push_back(task);
  node_of.assign(static_cast<size_t>(count), -1);
  for (const auto& [name, row] : members) {
    for (int task : row) node_of[task] = static_cast<int>(tasks.size());
    tasks.push_back(row);
  }
  std::vector<std::set<int>> rows_before(tasks.size());
  for (const auto& [from, to] : edges) {
    if (node_of[from] != node_of[to]) rows_before[node_of[to]].insert(node_of[from]);
  }
  for (const std::set<int>& row : rows_before) before.emplace_back(row.begin(), row.end());
}

void IdealGraph::FindPassed(const model::Problem& problem) {
  std::vector<std::set<int>> readers(static_cast<size_t>(problem.num_tensors));
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer >= 0 && node_of[producer] != node_of[task]) {
        readers[tensor].insert(node_of[task]);
      }
    }
  }
  touched_by.resize(tasks.size());
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    if (readers[tensor].empty()) continue;
    const int id = static_cast<int>(passed.size());
    const int producer = node_of[problem.producer[tensor]];
    passed.push_back({tensor, producer, {readers[tensor].begin(), readers[tensor].end()}});
    touched_by[producer].push_back(id);
    for (int reader : readers[tensor]) touched_by[reader].push_back(id);
  }
}

bool IdealGraph::FindIdeals(int most) {
  const size_t nodes = tasks.size();
  // A chain has the fewest: one more than nodes.
  if (static_cast<int64_t>(nodes) >= most) return false;
  const NodeSet none((nodes + 63) / 64, 0);
  std::map<NodeSet, int> known{{none, 0}};
  ideals.assign(1, none);
  grown.clear();
  for (size_t ideal = 0; ideal < ideals.size(); ++ideal) {
    grown.emplace_back();
    for (size_t node = 0; node < nodes; ++node) {
      const NodeSet& words = ideals[ideal];
      const bool is_ready = !Has(words, static_cast<int>(node)) &&
                            std::all_of(before[node].begin(), before[node].end(),
                                        [&](int other) { return Has(words, other); });
      if (!is_ready) continue;
      NodeSet larger = words;
      larger[node / 64] |= uint64_t{1} << (node % 64);
      const auto [found, is_new] = known.emplace(larger, static_cast<int>(ideals.size()));
      grown[ideal].emplace_back(static_cast<int>(node), found->second);
      if (is_new) ideals.push_back(std::move(larger));
      if (static_cast<int>(ideals.size()) > most) return false;
    }
  }
  return true;
}

bool IdealGraph::Passes(int id, int ideal) const {
  const Passed& one = passed[id];
  const bool is_made = Has(ideals[ideal], one.producer);
  return std::ranges::any_of(one.readers,
                             [&](int reader) { return Has(ideals[ideal], reader) != is_made; });
}

}  // namespace heteroplace::throughput
