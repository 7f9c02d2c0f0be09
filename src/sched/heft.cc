#include "sched/heft.h"

#include <tuple>
#include <utility>

#include "sched/list_scheduler.h"
#include "sched/ranks.h"

namespace heteroplace {

Schedule Heft(const Problem& problem, std::span<const uint8_t> preferred) {
  const std::vector<int> order = OrderByRank(UpwardRanks(problem, preferred));
  const Csr devices = PreferredDevices(problem, preferred);
  ListScheduler scheduler(problem);
  Candidate best, trial;
  for (int task : order) {
    // Less violation, then less finish with the way to the host, fewer units, lower id.
    std::tuple<int64_t, int64_t, size_t, int> best_key, key;
    bool is_first = true;
    for (int device : scheduler.Choices(task, devices[task])) {
      scheduler.Try(task, device, trial);
      key = {trial.violation, trial.finish_ns + scheduler.OutputTransfer(task, device),
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
