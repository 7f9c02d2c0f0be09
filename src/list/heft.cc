#include "list/heft.h"

#include <tuple>

#include "list/list_scheduler.h"
#include "list/ranks.h"

namespace heteroplace::list {

model::NativePlan Heft(const model::Problem& problem, std::span<const uint8_t> preferred,
                       const Watch& watch) {
  const std::vector<int> order = OrderByRank(UpwardRanks(problem, preferred));
  const model::Csr devices = PreferredDevices(problem, preferred);
  ListScheduler scheduler(problem, watch);
  for (int task : order) {
    // Less violation, then less finish with the way to the host, fewer units, lower id.
    scheduler.PlaceBest(task, devices[task], [&](const Candidate& trial) {
      return std::tuple(trial.violation,
                        trial.finish_ns + scheduler.OutputTransfer(task, trial.device),
                        problem.device_units[trial.device].size(), trial.device);
    });
  }
  return scheduler.Finish();
}

}  // namespace heteroplace::list
