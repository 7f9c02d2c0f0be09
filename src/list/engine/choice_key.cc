#include "list/engine/choice_key.h"

#include <algorithm>

#include "list/engine/priorities.h"

namespace heteroplace::list {

namespace {

constexpr double kExactNs = 0x1p52;  // times below are exact in a double

/*! \brief The device that can run most of the tasks, and of those the one that takes least. */
int FastestDevice(const model::Problem& problem, const std::vector<int>& tasks) {
  std::tuple<size_t, int64_t, int> least{tasks.size() + 1, 0, 0};
  for (int device = 0; device < problem.num_devices; ++device) {
    size_t num_impossible = 0;
    int64_t total_ns = 0;
    for (int task : tasks) {
      const int64_t run_ns = problem.Run(task, device);
      num_impossible += run_ns == model::kImpossible ? 1 : 0;
      total_ns += run_ns == model::kImpossible ? 0 : run_ns;
    }
    least = std::min(least, std::tuple(num_impossible, total_ns, device));
  }
  return std::get<2>(least);
}

/*! \brief Run time of a task, or of all tasks of its group, on a device. */
int64_t RunOfGroup(const model::Problem& problem, int task, int device) {
  const int group = problem.task_group[task];
  if (group < 0) return problem.Run(task, device);
  int64_t total = 0;
  for (int member : problem.group_tasks[group]) total += problem.Run(member, device);
  return total;
}

}  // namespace

ChoiceKeys::ChoiceKeys(const model::Problem& problem, const ListScheduler& scheduler, Choice choice,
                       std::span<const uint8_t> preferred, const model::Csr& devices)
    : problem_(problem), scheduler_(scheduler), choice_(choice) {
  if (choice == Choice::kLookahead) optimistic_ = OptimisticCosts(problem, preferred, devices);
  if (choice != Choice::kPath) return;
  const std::vector<int> path = CriticalPath(problem, preferred, devices);
  path_device_ = FastestDevice(problem, path);
  is_critical_.assign(static_cast<size_t>(problem.num_tasks), 0);
  for (int task : path) is_critical_[task] = 1;
}

ChoiceKey ChoiceKeys::Of(int task, const Candidate& trial) const {
  const int64_t finish_ns = trial.finish_ns + scheduler_.OutputTransfer(task, trial.device);
  const bool is_away =
      choice_ == Choice::kPath && is_critical_[task] != 0 && trial.device != path_device_;
  return {trial.violation,
          is_away,
          Value(task, trial, finish_ns),
          choice_ == Choice::kAvailable ? 0 : finish_ns,
          problem_.device_units[trial.device].size(),
          trial.device};
}

int64_t ChoiceKeys::LatestFinish(int task, int device, const ChoiceKey& other) const {
  // A key that memory or the path's device decides may be improved by whatever fits.
  if (other.violation > 0 || other.is_away) return ListScheduler::kAnyTime;
  double latest_ns = other.value;
  switch (choice_) {
    case Choice::kRun:
    case Choice::kAvailable:
      return ListScheduler::kAnyTime;
    case Choice::kStart:
      latest_ns += static_cast<double>(problem_.Run(task, device));
      break;
    case Choice::kLookahead:
      latest_ns -= Optimistic(task, device);
      break;
    case Choice::kFinish:
    case Choice::kLatency:
    case Choice::kPath:
      break;
  }
  // One more for what is lost in rounding.
  return latest_ns < kExactNs ? static_cast<int64_t>(latest_ns) + 1 : ListScheduler::kAnyTime;
}

double ChoiceKeys::Optimistic(int task, int device) const {
  const auto memories = static_cast<size_t>(problem_.num_memories);
  const auto memory = static_cast<size_t>(problem_.device_memory[device]);
  return optimistic_[static_cast<size_t>(task) * memories + memory];
}

double ChoiceKeys::Value(int task, const Candidate& trial, int64_t finish_ns) const {
  switch (choice_) {
    case Choice::kStart:
      return static_cast<double>(trial.start_ns);
    case Choice::kRun:
      return static_cast<double>(RunOfGroup(problem_, task, trial.device));
    case Choice::kLatency:
      return static_cast<double>(std::max(scheduler_.makespan_ns(), finish_ns));
    case Choice::kAvailable:
      return static_cast<double>(scheduler_.AvailableNs(trial.device));
    case Choice::kLookahead:
      return static_cast<double>(finish_ns) + Optimistic(task, trial.device);
    case Choice::kFinish:
    case Choice::kPath:
      return static_cast<double>(finish_ns);
  }
  return static_cast<double>(finish_ns);
}

}  // namespace heteroplace::list
