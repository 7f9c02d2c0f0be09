#include "sched/met.h"

#include <tuple>
#include <utility>
#include <vector>

#include "sched/list_scheduler.h"
#include "sched/ranks.h"

namespace heteroplace {

namespace {

/*! \brief Run time of a task, or of all tasks of its group, on a device. */
int64_t RunOfGroup(const Problem& problem, int task, int device) {
  const int group = problem.task_group[task];
  if (group < 0) return problem.Run(task, device);
  int64_t total = 0;
  for (int member : problem.group_tasks[group]) total += problem.Run(member, device);
  return total;
}

}  // namespace

Schedule Met(const Problem& problem) {
  ListScheduler scheduler(problem);
  Candidate best, trial;
  for (int task : OrderByRank(UpwardRanks(problem))) {
    std::tuple<int64_t, int64_t, int64_t, int> best_key;
    bool is_first = true;
    for (int device : scheduler.Choices(task, problem.allowed[task])) {
      scheduler.Try(task, device, trial);
      const std::tuple<int64_t, int64_t, int64_t, int> key = {
          trial.violation, RunOfGroup(problem, task, device), trial.finish_ns, device};
      if (!is_first && !(key < best_key)) continue;
      is_first = false;
      best_key = key;
      std::swap(best, trial);
    }
    scheduler.Commit(task, best);
  }
  return scheduler.Finish();
}

}  // namespace heteroplace
