#include "list/engine/list_scheduler.h"

#include <algorithm>

#include "list/engine/copies.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

ListScheduler::ListScheduler(const model::Problem& problem, Watch watch, Freeing freeing,
                             Insertion insertion)
    : problem_(problem),
      watch_(std::move(watch)),
      insertion_(insertion),
      use_(problem),
      busy_(static_cast<size_t>(problem.num_resources)),
      there_ns_(
          static_cast<size_t>(problem.num_tensors) * static_cast<size_t>(problem.num_memories),
          kNotThere),
      home_(static_cast<size_t>(problem.num_tensors), -1),
      group_device_(static_cast<size_t>(problem.num_groups), -1),
      released_(static_cast<size_t>(problem.num_memories), 0) {
  if (problem.counts_lifetimes && freeing == Freeing::kByReaders) {
    num_readers_.assign(static_cast<size_t>(problem.num_tensors), 0);
    for (int tensor : problem.task_reads.values) ++num_readers_[tensor];
  }
  plan_.device.assign(static_cast<size_t>(problem.num_tasks), -1);
  plan_.start_ns.assign(static_cast<size_t>(problem.num_tasks), 0);
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    if (problem.producer[tensor] >= 0) continue;
    home_[tensor] = problem.host;
    for (int memory = 0; memory < problem.num_memories; ++memory) {
      if (problem.host < 0 || memory == problem.host) there_ns_[At(tensor, memory)] = 0;
    }
  }
}

void ListScheduler::Ask() const {
  if (++tries_ < kTriesPerAsk) return;
  tries_ = 0;
  if (watch_) watch_();
}

void ListScheduler::FindLeastArrival(int tensor) {
  const auto num_memories = static_cast<size_t>(problem_.num_memories);
  const int64_t* const there_ns = there_ns_.data() + At(tensor, 0);
  const int home = home_[tensor];
  int64_t depart = home < 0 ? 0 : there_ns[home];
  int64_t shortest = kAnyTime;
  transfer_ns_.resize(num_memories);
  for (size_t memory = 0; memory < num_memories; ++memory) {
    if (there_ns[memory] != kNotThere) continue;
    const int64_t duration = problem_.Transfer(tensor, home, static_cast<int>(memory));
    transfer_ns_[memory] = duration;
    if (duration != model::kImpossible) shortest = std::min(shortest, duration);
  }
  if (shortest < kAnyTime) {
    for (int resource : problem_.departure_resources[home]) {
      depart = busy_[resource].EarliestFit(depart, shortest);
    }
  }
  for (size_t memory = 0; memory < num_memories; ++memory) {
    int64_t arrival = there_ns[memory];
    if (arrival == kNotThere) {
      if (transfer_ns_[memory] == model::kImpossible) continue;
      arrival = depart + transfer_ns_[memory];
    }
    least_ready_ns_[memory] = std::max(least_ready_ns_[memory], arrival);
  }
}

int ListScheduler::FindLeastReady(int task, std::span<const int> devices) {
  least_ready_ns_.assign(static_cast<size_t>(problem_.num_memories), 0);
  for (int tensor : problem_.task_reads[task]) FindLeastArrival(tensor);
  std::pair<int64_t, int> first{kAnyTime, devices.front()};
  for (int device : devices) {
    const int64_t ready = least_ready_ns_[problem_.device_memory[device]];
    const int64_t finish = std::max(ready, AvailableNs(device)) + problem_.Run(task, device);
    first = std::min(first, std::pair(finish, device));
  }
  return first.second;
}

bool ListScheduler::Try(int task, int device, Candidate& trial, int64_t latest_ns) const {
  Ask();
  const int memory = problem_.device_memory[device];
  const int64_t run_ns = problem_.Run(task, device);
  const int64_t latest_start_ns = latest_ns - run_ns;
  if (latest_ns != kAnyTime && least_ready_ns_[memory] > latest_start_ns) return false;
  trial.device = device;
  trial.copies.clear();
  trial.violation = 0;
  int64_t ready = 0;
  int64_t extra_bytes = ExtraBytes(task, device);
  for (int tensor : problem_.task_reads[task]) {
    int64_t arrival = There(tensor, memory);
    if (arrival == kNotThere) {
      const int home = home_[tensor];
      const int64_t duration = problem_.Transfer(tensor, home, memory);
      if (duration == model::kImpossible) {
        model::AddUnreachable(trial.violation);
        continue;
      }
      const int64_t start = FindTransfer(home, memory, There(tensor, home), duration, trial.copies);
      arrival = start + duration;
      trial.copies.push_back({tensor, home, start, arrival});
      extra_bytes += use_.ExtraForCopy(tensor, memory);
    }
    ready = std::max(ready, arrival);
    if (ready > latest_start_ns) return false;
  }
  if (problem_.host >= 0) {
    for (int tensor : problem_.task_makes[task]) {
      const bool is_stuck = problem_.is_output[tensor] != 0 &&
                            problem_.Transfer(tensor, memory, problem_.host) == model::kImpossible;
      if (is_stuck) model::AddUnreachable(trial.violation);
    }
  }
  trial.violation += Lack(memory, extra_bytes);
  trial.start_ns = FindRun(device, ready, run_ns);
  trial.finish_ns = trial.start_ns + run_ns;
  return trial.start_ns <= latest_start_ns;
}

int64_t ListScheduler::ExtraBytes(int task, int device) const {
  const int group = problem_.task_group[task];
  if (group < 0) return use_.ExtraForTask(task, device);
  if (group_device_[group] >= 0) return 0;
  return use_.ExtraForTasks(problem_.group_tasks[group], device);
}

int64_t ListScheduler::Lack(int memory, int64_t extra_bytes) const {
  return std::max<int64_t>(0, extra_bytes - use_.Free(memory) - released_[memory]);
}

void ListScheduler::Release(int task) {
  for (int tensor : problem_.task_reads[task]) {
    if (--num_readers_[tensor] == 0) ReleaseTensor(tensor);
  }
  for (int tensor : problem_.task_makes[task]) {
    if (num_readers_[tensor] == 0) ReleaseTensor(tensor);
  }
}

void ListScheduler::ReleaseTensor(int tensor) {
  // Outputs have yet to go to the host; an input without host is everywhere for nothing.
  if (problem_.is_output[tensor] != 0 || home_[tensor] < 0) return;
  for (int memory = 0; memory < problem_.num_memories; ++memory) {
    if (There(tensor, memory) != kNotThere) released_[memory] += use_.ExtraForCopy(tensor, memory);
  }
}

int64_t ListScheduler::OutputTransfer(int task, int device) const {
  int64_t longest = 0;
  if (problem_.host < 0) return longest;
  const int memory = problem_.device_memory[device];
  for (int tensor : problem_.task_makes[task]) {
    if (problem_.is_output[tensor] == 0) continue;
    longest = std::max(longest, problem_.Transfer(tensor, memory, problem_.host));
  }
  return longest;
}

int64_t ListScheduler::AvailableNs(int device) const {
  int64_t available = 0;
  for (int unit : problem_.device_units[device]) {
    available = std::max(available, busy_[unit].last_ns());
  }
  return available;
}

int64_t ListScheduler::FindTransfer(int src, int dst, int64_t ready, int64_t duration,
                                    const std::vector<PendingCopy>& pending) const {
  const auto resources = problem_.route_resources[problem_.Pair(src, dst)];
  if (resources.size() == 1 && pending.empty()) {
    return busy_[resources.front()].EarliestFit(ready, duration);
  }
  return SettleStart(ready, [&](int64_t next) {
    for (int resource : resources) next = busy_[resource].EarliestFit(next, duration);
    for (const PendingCopy& copy : pending) {
      const bool overlaps = copy.start_ns < next + duration && next < copy.finish_ns;
      if (overlaps && SharesResource(resources, copy.src, dst)) next = copy.finish_ns;
    }
    return next;
  });
}

bool ListScheduler::SharesResource(std::span<const int> resources, int src, int dst) const {
  for (int other : problem_.route_resources[problem_.Pair(src, dst)]) {
    if (std::ranges::find(resources, other) != resources.end()) return true;
  }
  return false;
}

int64_t ListScheduler::FindRun(int device, int64_t ready, int64_t duration) const {
  if (insertion_ == Insertion::kEnd) return std::max(ready, AvailableNs(device));
  const auto units = problem_.device_units[device];
  if (units.size() == 1) return busy_[units.front()].EarliestFit(ready, duration);
  return SettleStart(ready, [&](int64_t next) {
    for (int unit : units) next = busy_[unit].EarliestFit(next, duration);
    return next;
  });
}

void ListScheduler::Commit(int task, const Candidate& chosen) {
  const int device = chosen.device;
  const int memory = problem_.device_memory[device];
  for (const PendingCopy& copy : chosen.copies) {
    CommitCopy({copy.tensor, copy.src, memory, copy.start_ns, copy.finish_ns});
  }
  for (int unit : problem_.device_units[device]) {
    busy_[unit].Reserve(chosen.start_ns, chosen.finish_ns);
  }
  for (int tensor : problem_.task_makes[task]) {
    home_[tensor] = memory;
    there_ns_[At(tensor, memory)] = chosen.finish_ns;
  }
  const int group = problem_.task_group[task];
  if (group < 0) {
    use_.AddTask(task, device);
  } else if (group_device_[group] < 0) {
    group_device_[group] = device;
    for (int member : problem_.group_tasks[group]) use_.AddTask(member, device);
  }
  if (!num_readers_.empty()) Release(task);
  if (chosen.violation >= model::kUnreachablePenalty) model::AddUnreachable(plan_.violation);
  plan_.device[task] = device;
  plan_.start_ns[task] = chosen.start_ns;
  plan_.makespan_ns = std::max(plan_.makespan_ns, chosen.finish_ns);
}

void ListScheduler::CommitCopy(const model::ScheduledCopy& copy) {
  for (int resource : problem_.route_resources[problem_.Pair(copy.src, copy.dst)]) {
    busy_[resource].Reserve(copy.start_ns, copy.finish_ns);
  }
  there_ns_[At(copy.tensor, copy.dst)] = copy.finish_ns;
  use_.AddCopy(copy.tensor, copy.dst);
  plan_.copies.push_back(copy);
  plan_.makespan_ns = std::max(plan_.makespan_ns, copy.finish_ns);
}

model::NativePlan ListScheduler::Finish() {
  std::vector<int> waiting;
  for (int tensor : problem_.outputs) {
    if (problem_.host >= 0 && There(tensor, problem_.host) == kNotThere) waiting.push_back(tensor);
  }
  const auto made = [this](int tensor) { return There(tensor, home_[tensor]); };
  std::ranges::stable_sort(waiting,
                           [&made](int left, int right) { return made(left) < made(right); });
  for (int tensor : waiting) {
    const int home = home_[tensor];
    const int64_t duration = problem_.Transfer(tensor, home, problem_.host);
    if (duration == model::kImpossible) {
      model::AddUnreachable(plan_.violation);
      continue;
    }
    const int64_t start = FindTransfer(home, problem_.host, made(tensor), duration, {});
    CommitCopy({tensor, home, problem_.host, start, start + duration});
  }
  const int64_t overflow = use_.Overflow();
  const bool may_fit = overflow > 0 && plan_.violation == 0 && problem_.counts_lifetimes;
  plan_.violation += may_fit ? simulate::LiveOverflow(problem_, plan_) : overflow;
  return std::move(plan_);
}

}  // namespace heteroplace::list
