#include "list/evaluate.h"

#include <algorithm>

#include "list/copies.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

Evaluator::Evaluator(const model::Problem& problem)
    : problem_(problem),
      use_(problem),
      unit_free_ns_(problem.num_units, 0),
      busy_(problem.num_resources - problem.num_units),
      finish_ns_(problem.num_tasks, 0),
      arrival_ns_(
          static_cast<size_t>(problem.num_tensors) * static_cast<size_t>(problem.num_memories), 0),
      stamp_(arrival_ns_.size(), 0) {}

Value Evaluator::operator()(std::span<const int> device, std::span<const int> order,
                            int64_t limit_ns) {
  ++evaluation_;
  use_.Clear();
  copies_.clear();
  for (ReservationTable& busy : busy_) busy.Clear();
  std::fill(unit_free_ns_.begin(), unit_free_ns_.end(), 0);
  makespan_ns_ = 0;
  unreachable_ = 0;
  for (int task : order) {
    const int place = device[task];
    const int memory = problem_.device_memory[place];
    int64_t start = 0;
    for (int tensor : problem_.task_reads[task]) {
      start = std::max(start, Arrival(tensor, memory, device));
    }
    const auto units = problem_.device_units[place];
    for (int unit : units) start = std::max(start, unit_free_ns_[unit]);
    const int64_t finish = start + problem_.Run(task, place);
    for (int unit : units) unit_free_ns_[unit] = finish;
    finish_ns_[task] = finish;
    makespan_ns_ = std::max(makespan_ns_, finish);
    if (finish > limit_ns - problem_.tail_ns[task]) return Value{kNever, 0};
    use_.AddTask(task, place);
  }
  if (problem_.host >= 0) CopyOutputs(device);
  if (makespan_ns_ > limit_ns) return Value{kNever, use_.Overflow() + unreachable_};
  return Value{makespan_ns_, Violation(device)};
}

int64_t Evaluator::Violation(std::span<const int> device) const {
  const int64_t overflow = use_.Overflow();
  if (overflow == 0 || unreachable_ > 0 || !problem_.counts_lifetimes) {
    return overflow + unreachable_;
  }
  return simulate::LiveOverflow(problem_, Schedule(device));
}

int64_t Evaluator::Arrival(int tensor, int memory, std::span<const int> device) {
  const int producer = problem_.producer[tensor];
  const int home = producer < 0 ? problem_.host : problem_.device_memory[device[producer]];
  const int64_t made = producer < 0 ? 0 : finish_ns_[producer];
  if (home < 0 || home == memory) return made;
  const size_t slot = static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
                      static_cast<size_t>(memory);
  if (stamp_[slot] != evaluation_) {
    stamp_[slot] = evaluation_;
    arrival_ns_[slot] = Copy(tensor, home, memory, made);
  }
  return arrival_ns_[slot];
}

int64_t Evaluator::Copy(int tensor, int src, int dst, int64_t ready) {
  const int64_t duration = problem_.Transfer(tensor, src, dst);
  if (duration == model::kImpossible) {
    unreachable_ += model::kUnreachablePenalty;
    return ready;
  }
  const auto resources = problem_.route_resources[problem_.Pair(src, dst)];
  const int64_t start = ReserveCopy(resources, ready, duration, unit_free_ns_, busy_);
  const int64_t finish = start + duration;
  copies_.push_back({tensor, src, dst, start, finish});
  use_.AddCopy(tensor, dst);
  makespan_ns_ = std::max(makespan_ns_, finish);
  return finish;
}

void Evaluator::CopyOutputs(std::span<const int> device) {
  waiting_outputs_.clear();
  for (int tensor : problem_.outputs) {
    if (problem_.producer[tensor] >= 0) waiting_outputs_.push_back(tensor);
  }
  SortByMade(waiting_outputs_,
             [this](int tensor) { return finish_ns_[problem_.producer[tensor]]; });
  for (int tensor : waiting_outputs_) Arrival(tensor, problem_.host, device);
}

model::NativePlan Evaluator::LatestPlan(std::span<const int> device) const {
  model::NativePlan plan = Schedule(device);
  plan.violation = Violation(device);
  return plan;
}

model::NativePlan Evaluator::Schedule(std::span<const int> device) const {
  model::NativePlan plan;
  plan.device.assign(device.begin(), device.end());
  plan.start_ns.resize(static_cast<size_t>(problem_.num_tasks));
  for (int task = 0; task < problem_.num_tasks; ++task) {
    plan.start_ns[task] = finish_ns_[task] - problem_.Run(task, device[task]);
  }
  plan.copies = copies_;
  plan.makespan_ns = makespan_ns_;
  return plan;
}

}  // namespace heteroplace::list
