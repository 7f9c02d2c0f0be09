#include <algorithm>
#include <tuple>

#include "list/list_scheduler.h"
#include "list/scheduler.h"

namespace heteroplace::list {

namespace {

/*!
 * \brief Greedy (the baseline of DiviML, section V, DOI 10.48550/arXiv.2308.00127): in topological
 * order (by id) each task goes where the latency of all that is scheduled so far stays least.
 *
 * Ties, frequent since most tasks do not move the end: earlier finish, then fewer units, then the
 * lower device id.
 */
model::NativePlan Greedy(const model::Problem& problem, const Watch& watch) {
  ListScheduler scheduler(problem, watch);
  for (int task = 0; task < problem.num_tasks; ++task) {
    scheduler.PlaceBest(task, problem.allowed[task], [&](const Candidate& trial) {
      const int64_t finish = trial.finish_ns + scheduler.OutputTransfer(task, trial.device);
      return std::tuple(trial.violation, std::max(scheduler.makespan_ns(), finish), finish,
                        problem.device_units[trial.device].size(), trial.device);
    });
  }
  return scheduler.Finish();
}

const Scheduler kGreedy{"greedy", Greedy};

}  // namespace

}  // namespace heteroplace::list
