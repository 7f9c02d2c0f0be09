#include "list/engine/ready_queue.h"

#include <algorithm>
#include <tuple>

#include "list/engine/ranks.h"

namespace heteroplace::list {

namespace {

model::Csr ReadersOfTensors(const model::Problem& problem) {
  model::Csr readers;
  readers.offsets.assign(static_cast<size_t>(problem.num_tensors) + 1, 0);
  for (int tensor : problem.task_reads.values) ++readers.offsets[tensor + 1];
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    readers.offsets[tensor + 1] += readers.offsets[tensor];
  }
  readers.values.resize(problem.task_reads.values.size());
  std::vector<int> next(readers.offsets.begin(), readers.offsets.end() - 1);
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int tensor : problem.task_reads[task]) readers.values[next[tensor]++] = task;
  }
  return readers;
}

}  // namespace

bool ReadyPair::operator<(const ReadyPair& other) const {
  if (fault != other.fault) return fault < other.fault;
  if (time_ns != other.time_ns) return time_ns < other.time_ns;
  if (level != other.level) return level > other.level;
  return std::tie(run_ns, task, device) < std::tie(other.run_ns, other.task, other.device);
}

ReadyQueue::ReadyQueue(const model::Problem& problem, const ListScheduler& scheduler,
                       const model::Csr& devices, std::span<const double> level, Earliest rule)
    : problem_(problem),
      scheduler_(scheduler),
      devices_(devices),
      level_(level),
      rule_(rule),
      readers_(ReadersOfTensors(problem)),
      waiting_(static_cast<size_t>(problem.num_tasks)),
      heaps_(static_cast<size_t>(problem.num_devices) * 2),
      locked_from_ns_(static_cast<size_t>(problem.num_devices), kNever) {
  for (int task = 0; task < problem.num_tasks; ++task) {
    waiting_[task] = problem.predecessors[task].size();
  }
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (waiting_[task] != 0) continue;
    EnterAll(task);
    touched_.push_back(task);
  }
}

ReadyPair ReadyQueue::Judge(int task, int device) {
  scheduler_.Try(task, device, trial_);
  const int64_t time = rule_ == Earliest::kStart ? trial_.start_ns : trial_.finish_ns;
  const int fault = trial_.violation == 0                           ? 0
                    : trial_.violation < model::kUnreachablePenalty ? 1
                                                                    : 2;
  return {fault, time, level_[task], problem_.Run(task, device), task, device};
}

void ReadyQueue::Enter(ReadyPair pair) {
  const int64_t start = pair.time_ns - (rule_ == Earliest::kFinish ? pair.run_ns : 0);
  const int64_t available = BacklogNs(pair.device);
  // A run of no length also fits where another one begins, before the end of what there is.
  const bool waits_for_device = pair.run_ns > 0 && start == available;
  auto& heap = heaps_[static_cast<size_t>(2 * pair.device + (waits_for_device ? 1 : 0))];
  if (waits_for_device) pair.time_ns -= available;
  heap.push_back(pair);
  std::ranges::push_heap(heap, IsLater);
}

void ReadyQueue::EnterAll(int task) {
  for (int device : Choices(task)) Enter(Judge(task, device));
}

bool ReadyQueue::IsGone(const ReadyPair& pair) const {
  if (scheduler_.device(pair.task) >= 0) return true;
  const int fixed = scheduler_.GroupDevice(pair.task);
  return fixed >= 0 && fixed != pair.device;
}

int ReadyQueue::Top(ReadyPair& key) const {
  int top = -1;
  for (int index = 0; index < static_cast<int>(heaps_.size()); ++index) {
    if (heaps_[index].empty()) continue;
    ReadyPair first = heaps_[index].front();
    if (index % 2 == 1) first.time_ns += BacklogNs(first.device);
    if (first.time_ns >= locked_from_ns_[index / 2]) continue;
    if (top >= 0 && !(first < key)) continue;
    top = index;
    key = first;
  }
  return top;
}

bool ReadyQueue::Pop(ReadyPair& pair, Candidate& candidate) {
  while (true) {
    ReadyPair key;
    const int top = Top(key);
    if (top < 0) return false;
    auto& heap = heaps_[top];
    std::ranges::pop_heap(heap, IsLater);
    heap.pop_back();
    if (IsGone(key)) continue;
    pair = Judge(key.task, key.device);
    if (pair.time_ns >= locked_from_ns_[pair.device]) {
      Enter(pair);
      continue;
    }
    if (key < pair) {
      ReadyPair next;
      if (Top(next) >= 0 && next < pair) {
        Enter(pair);
        continue;
      }
    }
    std::swap(candidate, trial_);
    return true;
  }
}

void ReadyQueue::Placed(int task, const Candidate& chosen) {
  touched_.clear();
  const int memory = problem_.device_memory[chosen.device];
  // Others that read a copied tensor may now start earlier, or need less memory, than before.
  for (const PendingCopy& copy : chosen.copies) {
    for (int reader : readers_[copy.tensor]) {
      if (!IsReady(reader)) continue;
      touched_.push_back(reader);
      for (int device : Choices(reader)) {
        if (problem_.device_memory[device] == memory) Enter(Judge(reader, device));
      }
    }
  }
  const int group = problem_.task_group[task];
  if (group >= 0) {
    for (int member : problem_.group_tasks[group]) {
      if (member == task || !IsReady(member)) continue;
      Enter(Judge(member, chosen.device));
      touched_.push_back(member);
    }
  }
  for (int next : problem_.successors[task]) {
    if (--waiting_[next] != 0) continue;
    EnterAll(next);
    touched_.push_back(next);
  }
}

model::NativePlan PlaceEarliest(const model::Problem& problem, const model::Csr& devices,
                                Earliest rule, const Watch& watch) {
  const std::vector<double> level = UpwardRanks(problem);
  ListScheduler scheduler(problem, watch, Freeing::kNever);
  ReadyQueue queue(problem, scheduler, devices, level, rule);
  ReadyPair pair;
  Candidate candidate;
  while (queue.Pop(pair, candidate)) {
    scheduler.Commit(pair.task, candidate);
    queue.Placed(pair.task, candidate);
  }
  return scheduler.Finish();
}

}  // namespace heteroplace::list
