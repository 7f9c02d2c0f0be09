#include "search/initial_solutions.h"

#include <algorithm>
#include <numeric>

#include "list/engine/list_schedule.h"
#include "list/engine/ranks.h"
#include "list/evaluate.h"
#include "model/memory_use.h"
#include "search/moves/post_order.h"
#include "simulate/simulator.h"

namespace heteroplace::search {

namespace {

/*! \brief Priorities of tasks for list scheduling: branch by branch, and by upward rank. */
std::vector<std::vector<double>> OrderRules(const model::Problem& problem) {
  std::vector<double> turn(problem.num_tasks);
  const std::vector<int> order = PostOrder(problem);
  for (size_t index = 0; index < order.size(); ++index) {
    turn[order[index]] = -static_cast<double>(index);
  }
  return {turn, list::UpwardRanks(problem, std::vector<uint8_t>(problem.num_devices, 1))};
}

}  // namespace

std::vector<InitialSolution> CompleteSolutions(const model::Problem& problem,
                                               const std::vector<InitialSolution>& initial) {
  std::vector<InitialSolution> complete;
  std::vector<std::vector<double>> rules;
  for (InitialSolution start : initial) {
    for (int group = 0; group < problem.num_groups; ++group) {
      const auto tasks = problem.group_tasks[group];
      if (tasks.empty()) continue;
      const bool is_fine = problem.Run(tasks[0], start.device[tasks[0]]) != model::kImpossible;
      const int device = is_fine ? start.device[tasks[0]] : problem.allowed[tasks[0]][0];
      for (int task : tasks) start.device[task] = device;
    }
    if (!start.order.empty()) {
      complete.push_back(std::move(start));
      continue;
    }
    if (rules.empty()) rules = OrderRules(problem);
    for (const std::vector<double>& priority : rules) {
      const model::NativePlan plan = list::ListSchedule(problem, start.device, priority);
      start.order.resize(problem.num_tasks);
      std::iota(start.order.begin(), start.order.end(), 0);
      // Ids are in topological order, which breaks ties between tasks that take no time.
      std::ranges::stable_sort(start.order, [&](int left, int right) {
        return plan.start_ns[left] < plan.start_ns[right];
      });
      complete.push_back(start);
    }
  }
  return complete;
}

std::vector<int64_t> LiveReserve(const model::Problem& problem,
                                 const std::vector<InitialSolution>& complete,
                                 const std::function<bool()>& is_late) {
  list::Evaluator evaluate(problem);
  list::Value best;
  model::NativePlan plan;
  for (const InitialSolution& start : complete) {
    if (is_late()) break;
    const list::Value value = evaluate(start.device, start.order, list::kNever);
    if (value.violation > 0 || !(value < best)) continue;
    best = value;
    plan = evaluate.LatestPlan(start.device);
  }
  std::vector<int64_t> reserve(static_cast<size_t>(problem.num_memories), 0);
  if (best.makespan_ns == list::kNever) return reserve;
  const model::Problem without_tensors = problem.WithoutTensors({});
  model::MemoryUse use(without_tensors);
  for (int task = 0; task < problem.num_tasks; ++task) use.AddTask(task, plan.device[task]);
  const simulate::Times times = simulate::Simulate(problem, model::ToSteps(problem, plan));
  for (size_t memory = 0; memory < reserve.size(); ++memory) {
    reserve[memory] = std::max<int64_t>(0, times.peak_bytes[memory] - use.used()[memory]);
  }
  return reserve;
}

Layout LayoutOf(const decompose::Modules& modules, const InitialSolution& start,
                std::span<const int> position, int module) {
  const int begin = modules.first_task[module], end = modules.first_task[module + 1];
  Layout layout;
  layout.device.assign(start.device.begin() + begin, start.device.begin() + end);
  layout.order.resize(static_cast<size_t>(end - begin));
  std::iota(layout.order.begin(), layout.order.end(), 0);
  std::ranges::sort(layout.order, [&](int left, int right) {
    return position[begin + left] < position[begin + right];
  });
  return layout;
}

}  // namespace heteroplace::search
