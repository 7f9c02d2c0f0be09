#include "list/engine/mean_graph.h"

#include <algorithm>
#include <cmath>

#include "graph/levels.h"
#include "graph/topo.h"
#include "list/engine/ranks.h"

namespace heteroplace::list {

MeanGraph MakeMeanGraph(const model::Problem& problem) {
  MeanGraph graph{graph::Dag(problem.successors), {}, {}};
  for (double run : MeanRuns(problem, problem.allowed)) graph.run_ns.push_back(std::llround(run));
  std::vector<int64_t> transfer;
  for (double mean : MeanTransfers(problem)) transfer.push_back(std::llround(mean));
  graph.transfer_ns.assign(static_cast<size_t>(graph.dag.num_edges()), 0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    const auto before = graph.dag.predecessors[task];
    const auto edges = graph.dag.IncomingEdges(task);
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      const auto at = std::ranges::lower_bound(before, producer);
      graph.transfer_ns[edges[static_cast<size_t>(at - before.begin())]] += transfer[tensor];
    }
  }
  return graph;
}

std::vector<int> CriticalPathOrder(const model::Problem& problem) {
  const MeanGraph graph = MakeMeanGraph(problem);
  const graph::Levels levels = graph::ComputeLevels(graph.dag, graph.run_ns, graph.transfer_ns);
  std::vector<int64_t> through(levels.tlevel_ns);
  for (size_t task = 0; task < through.size(); ++task) through[task] += levels.blevel_ns[task];
  return CriticalPathOrder(graph.dag, through);
}

}  // namespace heteroplace::list
