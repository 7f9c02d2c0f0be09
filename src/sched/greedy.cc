#include "sched/greedy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sched/list_scheduler.h"

namespace heteroplace {

Schedule Greedy(const Problem& problem) {
  ListScheduler scheduler(problem);
  Candidate best, trial;
  for (int task = 0; task < problem.num_tasks; ++task) {
    std::tuple<int64_t, int64_t, int64_t, size_t, int> best_key;
    bool is_first = true;
    for (int device : scheduler.Choices(task, problem.allowed[task])) {
      scheduler.Try(task, device, trial);
      const int64_t finish = trial.finish_ns + scheduler.OutputTransfer(task, device);
      const std::tuple<int64_t, int64_t, int64_t, size_t, int> key = {
          trial.violation, std::max(scheduler.makespan_ns(), finish), finish,
          problem.device_units[device].size(), device};
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
