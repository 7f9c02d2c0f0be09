#include "list/engine/list_schedule.h"

#include "list/engine/list_scheduler.h"
#include "list/engine/ranks.h"

namespace heteroplace::list {

model::NativePlan ListSchedule(const model::Problem& problem, std::span<const int> device,
                               std::span<const double> priority) {
  ListScheduler scheduler(problem, nullptr);
  Candidate only;
  ForEachReady(problem, priority, [&](int task) {
    scheduler.Try(task, device[task], only);
    scheduler.Commit(task, only);
  });
  return scheduler.Finish();
}

}  // namespace heteroplace::list
