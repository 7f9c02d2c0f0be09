#include "model/native_plan.h"

#include <algorithm>
#include <tuple>

namespace heteroplace::model {

namespace {

/*! \brief A step with its place in the program: start, finish, then topological rank. */
struct Entry {
  int64_t start_ns;
  int64_t finish_ns;
  int64_t rank;
  Step step;

  auto Key() const { return std::tie(start_ns, finish_ns, rank, step.id, step.dst); }
};

}  // namespace

Steps ToSteps(const Problem& problem, const NativePlan& plan) {
  std::vector<Entry> entries;
  for (int task = 0; task < problem.num_tasks; ++task) {
    const int64_t start = plan.start_ns[task];
    const int device = plan.device[task];
    // Copies of a task's tensors come between it and the tasks that read them.
    entries.push_back({start, start + problem.Run(task, device), 2 * int64_t{task},
                       Step{StepKind::kRun, task, device, -1}});
  }
  for (const ScheduledCopy& copy : plan.copies) {
    entries.push_back({copy.start_ns, copy.finish_ns,
                       2 * int64_t{problem.producer[copy.tensor]} + 1,
                       Step{StepKind::kCopy, copy.tensor, copy.dst, copy.src}});
  }
  std::ranges::sort(entries,
                    [](const Entry& left, const Entry& right) { return left.Key() < right.Key(); });
  Steps steps;
  for (const Entry& entry : entries) {
    steps.list.push_back(entry.step);
    if (entry.step.kind == StepKind::kRun) {
      steps.links.AddRow(std::vector<int>());
    } else {
      steps.links.AddRow(problem.route_links[problem.Pair(entry.step.src, entry.step.dst)]);
    }
  }
  return steps;
}

}  // namespace heteroplace::model
