#include <tuple>
#include <vector>

#include "list/list_scheduler.h"
#include "list/ranks.h"
#include "list/scheduler.h"

namespace heteroplace::list {

namespace {

/*! \brief Run time of a task, or of all tasks of its group, on a device. */
int64_t RunOfGroup(const model::Problem& problem, int task, int device) {
  const int group = problem.task_group[task];
  if (group < 0) return problem.Run(task, device);
  int64_t total = 0;
  for (int member : problem.group_tasks[group]) total += problem.Run(member, device);
  return total;
}

/*!
 * \brief MET (minimum execution time, Braun et al. 2001, section 2, DOI 10.1006/jpdc.2000.1714):
 * each task on the device that runs it fastest, in order of upward rank, into the first gap.
 *
 * Unlike the paper: a device without room is passed over for the next fastest; a group counts as
 * one task. Ties: earlier finish, then the lower device id.
 */
model::NativePlan Met(const model::Problem& problem, const Watch& watch) {
  ListScheduler scheduler(problem, watch);
  for (int task : OrderByRank(UpwardRanks(problem))) {
    scheduler.PlaceBest(task, problem.allowed[task], [&](const Candidate& trial) {
      return std::tuple(trial.violation, RunOfGroup(problem, task, trial.device), trial.finish_ns,
                        trial.device);
    });
  }
  return scheduler.Finish();
}

const Scheduler kMet{"met", Met};

}  // namespace

}  // namespace heteroplace::list
