#include "list/evaluate.h"

#include <algorithm>

#include "list/copies.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

namespace {

constexpr int kBuckets = 1024;  // of time, in which live bytes are added up

}  // namespace

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
  const bool fits = MayFitByLifetime() && FitsInBuckets(device);
  return Value{makespan_ns_, fits ? 0 : Violation(device)};
}

bool Evaluator::MayFitByLifetime() const {
  return problem_.counts_lifetimes && unreachable_ == 0 && use_.Overflow() > 0;
}

int64_t Evaluator::Violation(std::span<const int> device) const {
  if (!MayFitByLifetime()) return use_.Overflow() + unreachable_;
  return simulate::LiveOverflow(problem_, Schedule(device));
}

void Evaluator::FindSpans(std::span<const int> device) {
  spans_.assign(arrival_ns_.size(), Span());
  const auto at = [this](int tensor, int memory) -> Span& {
    return spans_[static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
                  static_cast<size_t>(memory)];
  };
  const auto bring = [&](int tensor, int memory, int64_t start, int64_t finish, bool is_made) {
    const bool stays = problem_.host < 0 ? is_made : memory == problem_.host;
    const bool is_kept = problem_.is_output[tensor] != 0 && stays;
    at(tensor, memory) = {start, is_kept ? makespan_ns_ : finish};
  };
  for (int task = 0; task < problem_.num_tasks; ++task) {
    const int memory = problem_.device_memory[device[task]];
    const int64_t start = finish_ns_[task] - problem_.Run(task, device[task]);
    for (int tensor : problem_.task_makes[task]) {
      bring(tensor, memory, start, finish_ns_[task], true);
    }
  }
  for (const model::ScheduledCopy& copy : copies_) {
    bring(copy.tensor, copy.dst, copy.start_ns, copy.finish_ns, false);
  }
  const auto read = [&](int tensor, int memory, int64_t finish) {
    Span& span = at(tensor, memory);
    if (span.begin_ns != kNever) span.end_ns = std::max(span.end_ns, finish);
  };
  for (int task = 0; task < problem_.num_tasks; ++task) {
    const int memory = problem_.device_memory[device[task]];
    for (int tensor : problem_.task_reads[task]) read(tensor, memory, finish_ns_[task]);
  }
  for (const model::ScheduledCopy& copy : copies_) read(copy.tensor, copy.src, copy.finish_ns);
}

bool Evaluator::FitsInBuckets(std::span<const int> device) {
  const auto num_memories = static_cast<size_t>(problem_.num_memories);
  std::vector<int64_t> live(num_memories * (kBuckets + 1), 0);
  const auto bucket = [this](int64_t time_ns) {
    const double part = static_cast<double>(time_ns) / static_cast<double>(makespan_ns_ + 1);
    return static_cast<size_t>(part * kBuckets);
  };
  FindSpans(device);
  for (size_t slot = 0; slot < spans_.size(); ++slot) {
    if (spans_[slot].begin_ns == kNever) continue;
    int64_t* here = live.data() + slot % num_memories * (kBuckets + 1);
    const int64_t bytes = problem_.tensor_bytes[slot / num_memories];
    here[bucket(spans_[slot].begin_ns)] += bytes;
    here[bucket(spans_[slot].end_ns) + 1] -= bytes;
  }
  std::vector<int64_t> held(num_memories, 0), workspace(problem_.device_memory.size(), 0);
  for (int tensor = 0; tensor < problem_.num_tensors && problem_.host >= 0; ++tensor) {
    if (problem_.producer[tensor] < 0) held[problem_.host] += problem_.tensor_bytes[tensor];
  }
  for (int task = 0; task < problem_.num_tasks; ++task) {
    int64_t& largest = workspace[device[task]];
    held[problem_.device_memory[device[task]]] += problem_.weight_bytes[task];
    largest = std::max(largest, problem_.workspace_bytes[task]);
  }
  for (size_t place = 0; place < workspace.size(); ++place) {
    held[problem_.device_memory[place]] += workspace[place];
  }
  for (size_t memory = 0; memory < num_memories; ++memory) {
    int64_t sum = held[memory];
    for (size_t index = 0; index < kBuckets; ++index) {
      sum += live[memory * (kBuckets + 1) + index];
      if (sum > problem_.memory_bytes[memory]) return false;
    }
  }
  return true;
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
    model::AddUnreachable(unreachable_);
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
