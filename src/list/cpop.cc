#include <algorithm>
#include <tuple>
#include <vector>

#include "list/list_scheduler.h"
#include "list/ranks.h"
#include "list/scheduler.h"

namespace heteroplace::list {

namespace {

/*!
 * \brief Downward ranks in ns, [num_tasks]: the largest of rank + mean run time of a producer +
 * mean transfer (equation 7), with the means of the upward ranks.
 */
std::vector<double> DownwardRanks(const model::Problem& problem) {
  const std::vector<double> run = MeanRuns(problem, problem.allowed);
  const std::vector<double> transfer = MeanTransfers(problem);
  std::vector<double> rank(run.size(), 0.0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      rank[task] = std::max(rank[task], rank[producer] + run[producer] + transfer[tensor]);
    }
  }
  return rank;
}

/*! \brief The entry task of highest priority, its reader of highest priority, and so on. */
std::vector<int> CriticalPath(const model::Problem& problem, const std::vector<double>& priority) {
  std::vector<int> path;
  std::vector<int> choices;
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (problem.predecessors[task].empty()) choices.push_back(task);
  }
  while (!choices.empty()) {
    path.push_back(*std::max_element(choices.begin(), choices.end(), [&](int left, int right) {
      return priority[left] < priority[right];
    }));
    const auto readers = problem.successors[path.back()];
    choices.assign(readers.begin(), readers.end());
  }
  return path;
}

/*! \brief The device that can run most of the tasks, and of those the one that takes least. */
int BestDevice(const model::Problem& problem, const std::vector<int>& tasks) {
  std::tuple<size_t, int64_t, int> least{tasks.size() + 1, 0, 0};
  for (int device = 0; device < problem.num_devices; ++device) {
    size_t num_impossible = 0;
    int64_t total_ns = 0;
    for (int task : tasks) {
      const int64_t run_ns = problem.Run(task, device);
      num_impossible += run_ns == model::kImpossible ? 1 : 0;
      total_ns += run_ns == model::kImpossible ? 0 : run_ns;
    }
    least = std::min(least, std::tuple(num_impossible, total_ns, device));
  }
  return std::get<2>(least);
}

/*!
 * \brief CPoP (Topcuoglu, Hariri, Wu 2002, section 4.3): of the ready tasks the one of highest
 * upward + downward rank goes next; those of a critical path to the device that runs the path
 * fastest, the others where they finish first.
 *
 * Unlike the paper: paths may begin and end at several tasks; a task of the path that cannot be on
 * that device, or finds no room there, goes where it finishes first. Transfers, memory, the finish
 * of outputs and ties are as in heft.h.
 * Complexity: O((num_tasks * num_devices + reads * num_devices) * log).
 */
model::NativePlan Cpop(const model::Problem& problem, const Watch& watch) {
  std::vector<double> priority = UpwardRanks(problem);
  const std::vector<double> downward = DownwardRanks(problem);
  for (size_t task = 0; task < priority.size(); ++task) priority[task] += downward[task];
  const std::vector<int> path = CriticalPath(problem, priority);
  const int path_device = BestDevice(problem, path);
  std::vector<uint8_t> is_critical(priority.size(), 0);
  for (int task : path) is_critical[task] = 1;
  ListScheduler scheduler(problem, watch);
  ForEachReady(problem, priority, [&](int task) {
    scheduler.PlaceBest(task, problem.allowed[task], [&](const Candidate& trial) {
      const bool is_away = is_critical[task] != 0 && trial.device != path_device;
      return std::tuple(trial.violation, is_away,
                        trial.finish_ns + scheduler.OutputTransfer(task, trial.device),
                        problem.device_units[trial.device].size(), trial.device);
    });
  });
  return scheduler.Finish();
}

const Scheduler kCpop{"cpop", Cpop};

}  // namespace

}  // namespace heteroplace::list
