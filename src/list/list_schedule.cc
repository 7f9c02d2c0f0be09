#include "list/list_schedule.h"

#include <queue>
#include <vector>

#include "list/list_scheduler.h"

namespace heteroplace::list {

model::NativePlan ListSchedule(const model::Problem& problem, std::span<const int> device,
                               std::span<const double> priority) {
  const auto is_later = [&priority](int left, int right) {
    if (priority[left] != priority[right]) return priority[left] < priority[right];
    return left > right;
  };
  std::priority_queue<int, std::vector<int>, decltype(is_later)> ready(is_later);
  std::vector<size_t> waiting(static_cast<size_t>(problem.num_tasks));
  for (int task = 0; task < problem.num_tasks; ++task) {
    waiting[task] = problem.predecessors[task].size();
    if (waiting[task] == 0) ready.push(task);
  }
  ListScheduler scheduler(problem);
  Candidate only;
  while (!ready.empty()) {
    const int task = ready.top();
    ready.pop();
    scheduler.Try(task, device[task], only);
    scheduler.Commit(task, only);
    for (int next : problem.successors[task]) {
      if (--waiting[next] == 0) ready.push(next);
    }
  }
  return scheduler.Finish();
}

}  // namespace heteroplace::list
