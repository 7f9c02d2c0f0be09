#include "list/greedy.h"

#include <algorithm>
#include <tuple>

#include "list/list_scheduler.h"

namespace heteroplace::list {

model::NativePlan Greedy(const model::Problem& problem) {
  ListScheduler scheduler(problem);
  for (int task = 0; task < problem.num_tasks; ++task) {
    scheduler.PlaceBest(task, problem.allowed[task], [&](const Candidate& trial) {
      const int64_t finish = trial.finish_ns + scheduler.OutputTransfer(task, trial.device);
      return std::tuple(trial.violation, std::max(scheduler.makespan_ns(), finish), finish,
                        problem.device_units[trial.device].size(), trial.device);
    });
  }
  return scheduler.Finish();
}

}  // namespace heteroplace::list
