#include "list/evaluate.h"

#include <algorithm>
#include <bit>

#include "list/engine/copies.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

namespace {

// Of time, in which live bytes are added up: fewer for few spans, as all of them are looked at.
constexpr size_t kMinBuckets = 64;
constexpr size_t kMaxBuckets = 1024;
constexpr int kUnreached = -2;  // among the copies: there is no way

}  // namespace

Evaluator::Evaluator(const model::Problem& problem)
    : problem_(problem),
      use_(problem),
      unit_free_ns_(problem.num_units, 0),
      busy_(problem.num_resources - problem.num_units),
      finish_ns_(problem.num_tasks, 0),
      copied_(problem.num_tensors),
      input_bytes_(problem.num_memories, 0) {
  for (int tensor = 0; tensor < problem.num_tensors && problem.host >= 0; ++tensor) {
    if (problem.producer[tensor] < 0) input_bytes_[problem.host] += problem.tensor_bytes[tensor];
  }
}

Value Evaluator::operator()(std::span<const int> device, std::span<const int> order,
                            int64_t limit_ns) {
  use_.Clear();
  copies_.clear();
  copied_.Clear();
  for (ReservationTable& busy : busy_) busy.Clear();
  std::ranges::fill(unit_free_ns_, 0);
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
  home_spans_.assign(problem_.num_tensors, Span());
  copy_spans_.assign(copies_.size(), Span());
  const auto last = [&](int tensor, bool stays, int64_t finish) {
    return problem_.is_output[tensor] != 0 && stays ? makespan_ns_ : finish;
  };
  for (int task = 0; task < problem_.num_tasks; ++task) {
    const int memory = problem_.device_memory[device[task]];
    const int64_t start = finish_ns_[task] - problem_.Run(task, device[task]);
    for (int tensor : problem_.task_makes[task]) {
      const bool stays = problem_.host < 0 || memory == problem_.host;
      home_spans_[tensor] = {start, last(tensor, stays, finish_ns_[task])};
    }
  }
  for (size_t index = 0; index < copies_.size(); ++index) {
    const model::ScheduledCopy& copy = copies_[index];
    const bool stays = problem_.host >= 0 && copy.dst == problem_.host;
    copy_spans_[index] = {copy.start_ns, last(copy.tensor, stays, copy.finish_ns)};
    int64_t& end = home_spans_[copy.tensor].end_ns;
    end = std::max(end, copy.finish_ns);
  }
  for (int task = 0; task < problem_.num_tasks; ++task) {
    const int memory = problem_.device_memory[device[task]];
    for (int tensor : problem_.task_reads[task]) {
      const int copy = copied_.Find(tensor, memory);
      int64_t& end = copy >= 0 ? copy_spans_[copy].end_ns : home_spans_[tensor].end_ns;
      end = std::max(end, finish_ns_[task]);
    }
  }
}

bool Evaluator::FitsInBuckets(std::span<const int> device) {
  FindSpans(device);
  const auto num_memories = static_cast<size_t>(problem_.num_memories);
  const size_t spans = home_spans_.size() + copy_spans_.size();
  const size_t buckets = std::clamp(std::bit_ceil(2 * spans), kMinBuckets, kMaxBuckets);
  live_.assign(num_memories * (buckets + 1), 0);
  const double per_ns = static_cast<double>(buckets) / static_cast<double>(makespan_ns_ + 1);
  const auto bucket = [buckets, per_ns](int64_t time_ns) {
    return std::min(buckets - 1, static_cast<size_t>(static_cast<double>(time_ns) * per_ns));
  };
  const auto add = [&](int tensor, int memory, const Span& span) {
    int64_t* here = live_.data() + static_cast<size_t>(memory) * (buckets + 1);
    here[bucket(span.begin_ns)] += problem_.tensor_bytes[tensor];
    here[bucket(span.end_ns) + 1] -= problem_.tensor_bytes[tensor];
  };
  for (int tensor = 0; tensor < problem_.num_tensors; ++tensor) {
    if (problem_.producer[tensor] >= 0) add(tensor, Home(tensor, device), home_spans_[tensor]);
  }
  for (size_t index = 0; index < copies_.size(); ++index) {
    add(copies_[index].tensor, copies_[index].dst, copy_spans_[index]);
  }
  held_ = input_bytes_;
  workspace_.assign(problem_.device_memory.size(), 0);
  for (int task = 0; task < problem_.num_tasks; ++task) {
    int64_t& largest = workspace_[device[task]];
    held_[problem_.device_memory[device[task]]] += problem_.weight_bytes[task];
    largest = std::max(largest, problem_.workspace_bytes[task]);
  }
  for (size_t place = 0; place < workspace_.size(); ++place) {
    held_[problem_.device_memory[place]] += workspace_[place];
  }
  for (size_t memory = 0; memory < num_memories; ++memory) {
    int64_t sum = held_[memory];
    for (size_t index = 0; index < buckets; ++index) {
      sum += live_[memory * (buckets + 1) + index];
      if (sum > problem_.memory_bytes[memory]) return false;
    }
  }
  return true;
}

int64_t Evaluator::Arrival(int tensor, int memory, std::span<const int> device) {
  const int producer = problem_.producer[tensor];
  const int home = Home(tensor, device);
  const int64_t made = producer < 0 ? 0 : finish_ns_[producer];
  if (home < 0 || home == memory) return made;
  const int copy = copied_.Find(tensor, memory);
  if (copy == model::TensorPlaces::kNone) return Copy(tensor, home, memory, made);
  return copy == kUnreached ? made : copies_[copy].finish_ns;
}

int64_t Evaluator::Copy(int tensor, int src, int dst, int64_t ready) {
  const int64_t duration = problem_.Transfer(tensor, src, dst);
  if (duration == model::kImpossible) {
    model::AddUnreachable(unreachable_);
    copied_.Add(tensor, dst, kUnreached);
    return ready;
  }
  const auto resources = problem_.route_resources[problem_.Pair(src, dst)];
  const int64_t start = ReserveCopy(resources, ready, duration, unit_free_ns_, busy_);
  const int64_t finish = start + duration;
  copied_.Add(tensor, dst, static_cast<int>(copies_.size()));
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
