#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "list/list_scheduler.h"
#include "list/ranks.h"
#include "list/scheduler.h"

namespace heteroplace::list {

namespace {

/*!
 * \brief Optimistic cost table in ns, [num_tasks][num_memories] (equation 3): the longest of the
 * paths to the end if every task on them is where that is shortest and waits for nothing, for a
 * task in a memory.
 */
std::vector<double> OptimisticCosts(const model::Problem& problem) {
  const auto memories = static_cast<size_t>(problem.num_memories);
  const std::vector<double> transfer = MeanTransfers(problem);
  std::vector<double> cost(static_cast<size_t>(problem.num_tasks) * memories, 0.0);
  std::vector<double> least(memories);  // run time and cost of a reader, in each memory
  for (int reader = problem.num_tasks - 1; reader >= 0; --reader) {
    std::fill(least.begin(), least.end(), std::numeric_limits<double>::infinity());
    for (int device : problem.allowed[reader]) {
      const auto memory = static_cast<size_t>(problem.device_memory[device]);
      const double rest = cost[static_cast<size_t>(reader) * memories + memory];
      least[memory] =
          std::min(least[memory], static_cast<double>(problem.Run(reader, device)) + rest);
    }
    const double anywhere = *std::min_element(least.begin(), least.end());
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

/*!
 * \brief PEFT (Arabnejad, Barbosa 2014): of the ready tasks the one of highest mean optimistic cost
 * goes next, to the device where finish + optimistic cost is least.
 *
 * Unlike the paper: devices of one memory need no transfer between them; means are over the
 * devices that a task is allowed on. Transfers, memory, the finish of outputs and ties are as in
 * heft.h.
 * Complexity: O((num_tasks * num_devices + reads * (num_devices + num_memories)) * log).
 */
model::NativePlan Peft(const model::Problem& problem, const Watch& watch) {
  const auto memories = static_cast<size_t>(problem.num_memories);
  const std::vector<double> cost = OptimisticCosts(problem);
  const auto cost_on = [&](int task, int device) {
    return cost[static_cast<size_t>(task) * memories +
                static_cast<size_t>(problem.device_memory[device])];
  };
  std::vector<double> priority(static_cast<size_t>(problem.num_tasks), 0.0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int device : problem.allowed[task]) priority[task] += cost_on(task, device);
    priority[task] /= static_cast<double>(problem.allowed[task].size());
  }
  ListScheduler scheduler(problem, watch);
  ForEachReady(problem, priority, [&](int task) {
    scheduler.PlaceBest(task, problem.allowed[task], [&](const Candidate& trial) {
      const int64_t finish = trial.finish_ns + scheduler.OutputTransfer(task, trial.device);
      return std::tuple(trial.violation, static_cast<double>(finish) + cost_on(task, trial.device),
                        problem.device_units[trial.device].size(), trial.device);
    });
  });
  return scheduler.Finish();
}

const Scheduler kPeft{"peft", Peft};

}  // namespace

}  // namespace heteroplace::list
