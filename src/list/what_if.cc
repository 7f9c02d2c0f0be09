#include "list/what_if.h"

#include "list/evaluate.h"

namespace heteroplace::list {

std::vector<int64_t> WhatIf(const model::Problem& problem, std::span<const int> placement,
                            std::span<const int> order, std::span<const int> moved) {
  Evaluator evaluate(problem);
  std::vector<int> device(placement.begin(), placement.end());
  std::vector<int64_t> makespan;
  for (int task : moved) {
    const int group = problem.task_group[task];
    const auto set = [&](int place) {
      if (group < 0) {
        device[task] = place;
      } else {
        for (int member : problem.group_tasks[group]) device[member] = place;
      }
    };
    for (int place = 0; place < problem.num_devices; ++place) {
      if (problem.Run(task, place) == model::kImpossible) {
        makespan.push_back(model::kImpossible);
        continue;
      }
      set(place);
      const Value value = evaluate(device, order, kNever);
      makespan.push_back(value.violation == 0 ? value.makespan_ns : model::kImpossible);
    }
    set(placement[task]);
  }
  return makespan;
}

}  // namespace heteroplace::list
