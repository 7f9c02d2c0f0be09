#include "list/engine/priorities.h"

#include <algorithm>
#include <limits>

#include "list/engine/ranks.h"

namespace heteroplace::list {

namespace {

/*!
 * \brief Upward + downward ranks in ns, [num_tasks]. Downward: the largest of rank + mean run time
 * of a producer + mean transfer (Topcuoglu et al. 2002, equation 7), with the same means.
 */
std::vector<double> PathRanks(const model::Problem& problem, std::span<const uint8_t> preferred,
                              const model::Csr& devices) {
  const std::vector<double> run = MeanRuns(problem, devices);
  const std::vector<double> transfer = MeanTransfers(problem, preferred);
  std::vector<double> downward(run.size(), 0.0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      downward[task] =
          std::max(downward[task], downward[producer] + run[producer] + transfer[tensor]);
    }
  }
  std::vector<double> rank = UpwardRanks(problem, preferred);
  for (size_t task = 0; task < rank.size(); ++task) rank[task] += downward[task];
  return rank;
}

/*! \brief Mean of the optimistic costs of each task over its devices. */
std::vector<double> MeanOptimisticCosts(const model::Problem& problem,
                                        std::span<const uint8_t> preferred,
                                        const model::Csr& devices) {
  const std::vector<double> cost = OptimisticCosts(problem, preferred, devices);
  std::vector<double> mean(static_cast<size_t>(problem.num_tasks), 0.0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    const auto row = cost.begin() + static_cast<std::ptrdiff_t>(task) * problem.num_memories;
    for (int device : devices[task]) mean[task] += row[problem.device_memory[device]];
    mean[task] /= static_cast<double>(devices[task].size());
  }
  return mean;
}

}  // namespace

std::vector<double> Priorities(const model::Problem& problem, Priority priority,
                               std::span<const uint8_t> preferred, const model::Csr& devices) {
  if (priority == Priority::kRank) return UpwardRanks(problem, preferred);
  if (priority == Priority::kPath) return PathRanks(problem, preferred, devices);
  if (priority == Priority::kLookahead) return MeanOptimisticCosts(problem, preferred, devices);
  return std::vector<double>(static_cast<size_t>(problem.num_tasks), 0.0);  // the lowest id first
}

std::vector<int> CriticalPath(const model::Problem& problem, std::span<const uint8_t> preferred,
                              const model::Csr& devices) {
  const std::vector<double> priority = PathRanks(problem, preferred, devices);
  std::vector<int> path;
  std::vector<int> choices;
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (problem.predecessors[task].empty()) choices.push_back(task);
  }
  while (!choices.empty()) {
    path.push_back(*std::ranges::max_element(
        choices, [&](int left, int right) { return priority[left] < priority[right]; }));
    const auto readers = problem.successors[path.back()];
    choices.assign(readers.begin(), readers.end());
  }
  return path;
}

std::vector<double> OptimisticCosts(const model::Problem& problem,
                                    std::span<const uint8_t> preferred, const model::Csr& devices) {
  const auto memories = static_cast<size_t>(problem.num_memories);
  const std::vector<double> transfer = MeanTransfers(problem, preferred);
  std::vector<double> cost(static_cast<size_t>(problem.num_tasks) * memories, 0.0);
  std::vector<double> least(memories);  // run time and cost of a reader, in each memory
  for (int reader = problem.num_tasks - 1; reader >= 0; --reader) {
    std::ranges::fill(least, std::numeric_limits<double>::infinity());
    for (int device : devices[reader]) {
      const auto memory = static_cast<size_t>(problem.device_memory[device]);
      const double rest = cost[static_cast<size_t>(reader) * memories + memory];
      least[memory] =
          std::min(least[memory], static_cast<double>(problem.Run(reader, device)) + rest);
    }
    const double anywhere = *std::ranges::min_element(least);
    for (int tensor : problem.task_reads[reader]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      for (size_t memory = 0; memory < memories; ++memory) {
        double& entry = cost[static_cast<size_t>(producer) * memories + memory];
        entry = std::max(entry, std::min(least[memory], anywhere + transfer[tensor]));
      }
    }
  }
  return cost;
}

}  // namespace heteroplace::list
