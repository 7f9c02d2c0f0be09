#include "sched/list_schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

#include "model/memory_use.h"
#include "sched/slots.h"

namespace heteroplace {

namespace {

constexpr int64_t kNotThere = -1;

/*! \brief A copy that a candidate placement would need, with the slot found for it. */
struct Tentative {
  int tensor;
  int src;
  int64_t start_ns;
  int64_t finish_ns;
};

/*! \brief What happens if a task goes to a device next. */
struct Candidate {
  int device = -1;
  int64_t start_ns = 0;
  int64_t finish_ns = 0;
  int64_t judged_ns = 0;  // finish, plus the transfer of outputs to the host
  int64_t violation = 0;  // bytes without room, plus penalties for unreachable tensors
  int num_units = 0;
  std::vector<Tentative> copies;

  bool IsBetterThan(const Candidate& other) const {
    if (violation != other.violation) return violation < other.violation;
    if (judged_ns != other.judged_ns) return judged_ns < other.judged_ns;
    if (num_units != other.num_units) return num_units < other.num_units;
    return device < other.device;
  }
};

/*! \brief Grows a schedule task by task, into the earliest gaps. */
class ListScheduler {
 public:
  explicit ListScheduler(const Problem& problem)
      : problem_(problem),
        use_(problem),
        busy_(problem.num_resources),
        there_ns_(
            static_cast<size_t>(problem.num_tensors) * static_cast<size_t>(problem.num_memories),
            kNotThere),
        group_device_(problem.num_groups, -1) {
    schedule_.device.assign(problem.num_tasks, -1);
    schedule_.start_ns.assign(problem.num_tasks, 0);
  }

  /*! \brief Puts the task on the best of the given devices. Its producers must be placed. */
  void Place(int task, std::span<const int> devices) {
    const int group = problem_.task_group[task];
    Candidate best;
    if (group >= 0 && group_device_[group] >= 0) {
      Try(task, group_device_[group], best);
    } else {
      Candidate trial;
      for (int device : devices) {
        Try(task, device, trial);
        if (best.device < 0 || trial.IsBetterThan(best)) std::swap(best, trial);
      }
    }
    Commit(task, best);
  }

  /*! \brief Copies the outputs to the host and returns the schedule. */
  Schedule Finish() {
    if (problem_.host >= 0) CopyOutputs();
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      schedule_.violation += std::max<int64_t>(0, -use_.Free(memory));
    }
    return std::move(schedule_);
  }

 private:
  int64_t& There(int tensor, int memory) {
    return there_ns_[static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
                     static_cast<size_t>(memory)];
  }

  /*! \brief Memory where the tensor was made; -1: everywhere. */
  int Home(int tensor) const {
    const int producer = problem_.producer[tensor];
    return producer < 0 ? problem_.host : problem_.device_memory[schedule_.device[producer]];
  }

  /*! \brief When the tensor is ready in its home. */
  int64_t Made(int tensor) const {
    const int producer = problem_.producer[tensor];
    if (producer < 0) return 0;
    return schedule_.start_ns[producer] + problem_.Run(producer, schedule_.device[producer]);
  }

  /*! \brief Earliest slot on all resources of a route, clear of the tentative copies too. */
  int64_t FindTransfer(int src, int dst, int64_t ready, int64_t duration,
                       const std::vector<Tentative>& pending) const {
    const auto resources = problem_.route_resources[problem_.Pair(src, dst)];
    int64_t start = ready;
    while (true) {
      int64_t next = start;
      for (int resource : resources) next = busy_[resource].EarliestFit(next, duration);
      for (const Tentative& copy : pending) {
        const bool overlaps = copy.start_ns < next + duration && next < copy.finish_ns;
        if (overlaps && SharesResource(resources, copy.src, dst)) next = copy.finish_ns;
      }
      if (next == start) return start;
      start = next;
    }
  }

  bool SharesResource(std::span<const int> resources, int src, int dst) const {
    for (int other : problem_.route_resources[problem_.Pair(src, dst)]) {
      if (std::find(resources.begin(), resources.end(), other) != resources.end()) return true;
    }
    return false;
  }

  void Try(int task, int device, Candidate& trial) {
    const int memory = problem_.device_memory[device];
    trial.device = device;
    trial.copies.clear();
    trial.violation = 0;
    int64_t ready = 0;
    int64_t extra_bytes = ExtraBytes(task, device);
    for (int tensor : problem_.task_reads[task]) {
      const int home = Home(tensor);
      int64_t arrival = Made(tensor);
      if (home >= 0 && home != memory) {
        if (There(tensor, memory) != kNotThere) {
          arrival = There(tensor, memory);
        } else if (problem_.Transfer(tensor, home, memory) == kImpossible) {
          trial.violation += kUnreachablePenalty;
        } else {
          const int64_t duration = problem_.Transfer(tensor, home, memory);
          const int64_t start = FindTransfer(home, memory, arrival, duration, trial.copies);
          arrival = start + duration;
          trial.copies.push_back({tensor, home, start, arrival});
          extra_bytes += use_.ExtraForCopy(tensor, memory);
        }
      }
      ready = std::max(ready, arrival);
    }
    trial.violation += std::max<int64_t>(0, extra_bytes - use_.Free(memory));
    trial.num_units = static_cast<int>(problem_.device_units[device].size());
    trial.start_ns = FindRun(device, ready, problem_.Run(task, device));
    trial.finish_ns = trial.start_ns + problem_.Run(task, device);
    trial.judged_ns = trial.finish_ns + OutputTransfer(task, memory, trial);
  }

  /*! \brief Bytes that the task brings; for the first of a group those of the whole group. */
  int64_t ExtraBytes(int task, int device) const {
    const int group = problem_.task_group[task];
    if (group < 0) return use_.ExtraForTask(task, device);
    if (group_device_[group] >= 0) return 0;
    int64_t extra = 0;
    for (int member : problem_.group_tasks[group]) extra += use_.ExtraForTask(member, device);
    return extra;
  }

  /*! \brief Longest transfer of the task's model outputs to the host. */
  int64_t OutputTransfer(int task, int memory, Candidate& trial) const {
    int64_t longest = 0;
    if (problem_.host < 0) return longest;
    for (int tensor : problem_.task_makes[task]) {
      if (problem_.is_output[tensor] == 0) continue;
      const int64_t transfer = problem_.Transfer(tensor, memory, problem_.host);
      if (transfer == kImpossible) trial.violation += kUnreachablePenalty;
      longest = std::max(longest, transfer);
    }
    return longest;
  }

  int64_t FindRun(int device, int64_t ready, int64_t duration) const {
    int64_t start = ready;
    while (true) {
      int64_t next = start;
      for (int unit : problem_.device_units[device]) {
        next = busy_[unit].EarliestFit(next, duration);
      }
      if (next == start) return start;
      start = next;
    }
  }

  void Commit(int task, const Candidate& chosen) {
    const int memory = problem_.device_memory[chosen.device];
    for (const Tentative& copy : chosen.copies) {
      CommitCopy({copy.tensor, copy.src, memory, copy.start_ns, copy.finish_ns});
    }
    for (int unit : problem_.device_units[chosen.device]) {
      busy_[unit].Reserve(chosen.start_ns, chosen.finish_ns);
    }
    use_.AddTask(task, chosen.device);
    if (chosen.violation >= kUnreachablePenalty) schedule_.violation += kUnreachablePenalty;
    schedule_.device[task] = chosen.device;
    schedule_.start_ns[task] = chosen.start_ns;
    schedule_.makespan_ns = std::max(schedule_.makespan_ns, chosen.finish_ns);
    if (problem_.task_group[task] >= 0) group_device_[problem_.task_group[task]] = chosen.device;
  }

  void CommitCopy(const ScheduledCopy& copy) {
    for (int resource : problem_.route_resources[problem_.Pair(copy.src, copy.dst)]) {
      busy_[resource].Reserve(copy.start_ns, copy.finish_ns);
    }
    There(copy.tensor, copy.dst) = copy.finish_ns;
    use_.AddCopy(copy.tensor, copy.dst);
    schedule_.copies.push_back(copy);
    schedule_.makespan_ns = std::max(schedule_.makespan_ns, copy.finish_ns);
  }

  void CopyOutputs() {
    std::vector<int> waiting;
    for (int tensor : problem_.outputs) {
      const bool is_there =
          Home(tensor) == problem_.host || There(tensor, problem_.host) != kNotThere;
      if (!is_there) waiting.push_back(tensor);
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [this](int left, int right) { return Made(left) < Made(right); });
    for (int tensor : waiting) {
      const int home = Home(tensor);
      const int64_t duration = problem_.Transfer(tensor, home, problem_.host);
      if (duration == kImpossible) {
        schedule_.violation += kUnreachablePenalty;
        continue;
      }
      const int64_t start = FindTransfer(home, problem_.host, Made(tensor), duration, {});
      CommitCopy({tensor, home, problem_.host, start, start + duration});
    }
  }

  const Problem& problem_;
  MemoryUse use_;
  std::vector<Slots> busy_;        // [num_resources]
  std::vector<int64_t> there_ns_;  // [num_tensors][num_memories], arrival of copies
  std::vector<int> group_device_;  // [num_groups], -1: not chosen yet
  Schedule schedule_;
};

/*! \brief The devices a task should use: the preferred ones among the allowed, else all. */
Csr PreferredDevices(const Problem& problem, std::span<const uint8_t> preferred) {
  Csr lists;
  for (int task = 0; task < problem.num_tasks; ++task) {
    std::vector<int> devices;
    for (int device : problem.allowed[task]) {
      if (preferred[device] != 0) devices.push_back(device);
    }
    if (devices.empty()) {
      lists.AddRow(problem.allowed[task]);
    } else {
      lists.AddRow(devices);
    }
  }
  return lists;
}

/*! \brief Mean transfer time of a tensor over the ordered pairs of distinct preferred devices. */
class MeanTransfer {
 public:
  MeanTransfer(const Problem& problem, std::span<const uint8_t> preferred)
      : problem_(problem), count_(problem.num_memories, 0.0) {
    double devices = 0;
    for (int device = 0; device < problem.num_devices; ++device) {
      if (preferred[device] == 0) continue;
      count_[problem.device_memory[device]] += 1.0;
      devices += 1.0;
    }
    pairs_ = std::max(1.0, devices * (devices - 1.0));
  }

  double operator()(int tensor) const {
    double sum = 0;
    for (int src = 0; src < problem_.num_memories; ++src) {
      for (int dst = 0; dst < problem_.num_memories; ++dst) {
        const double weight = count_[src] * count_[dst];
        if (src == dst || weight == 0) continue;
        const int64_t transfer = problem_.Transfer(tensor, src, dst);
        if (transfer != kImpossible) sum += weight * static_cast<double>(transfer);
      }
    }
    return sum / pairs_;
  }

 private:
  const Problem& problem_;
  std::vector<double> count_;  // [num_memories], preferred devices in it
  double pairs_ = 1;
};

}  // namespace

std::vector<double> UpwardRanks(const Problem& problem, std::span<const uint8_t> preferred) {
  const Csr devices = PreferredDevices(problem, preferred);
  const MeanTransfer mean_transfer(problem, preferred);
  std::vector<double> below(problem.num_tasks, 0.0);  // max over readers of transfer + rank
  std::vector<double> rank(problem.num_tasks, 0.0);
  for (int task = problem.num_tasks - 1; task >= 0; --task) {
    double run = 0;
    for (int device : devices[task]) run += static_cast<double>(problem.Run(task, device));
    rank[task] = run / std::max(1.0, static_cast<double>(devices[task].size())) + below[task];
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      below[producer] = std::max(below[producer], mean_transfer(tensor) + rank[task]);
    }
  }
  return rank;
}

Schedule Heft(const Problem& problem, std::span<const uint8_t> preferred) {
  const std::vector<double> rank = UpwardRanks(problem, preferred);
  const Csr devices = PreferredDevices(problem, preferred);
  std::vector<int> order(problem.num_tasks);
  std::iota(order.begin(), order.end(), 0);
  // A producer's rank is at least its reader's, and its id is lower: the order is topological.
  std::stable_sort(order.begin(), order.end(),
                   [&rank](int left, int right) { return rank[left] > rank[right]; });
  ListScheduler scheduler(problem);
  for (int task : order) scheduler.Place(task, devices[task]);
  return scheduler.Finish();
}

Schedule ListSchedule(const Problem& problem, std::span<const int> device,
                      std::span<const double> priority) {
  const auto is_later = [&priority](int left, int right) {
    if (priority[left] != priority[right]) return priority[left] < priority[right];
    return left > right;
  };
  std::priority_queue<int, std::vector<int>, decltype(is_later)> ready(is_later);
  std::vector<size_t> waiting(problem.num_tasks);
  for (int task = 0; task < problem.num_tasks; ++task) {
    waiting[task] = problem.predecessors[task].size();
    if (waiting[task] == 0) ready.push(task);
  }
  ListScheduler scheduler(problem);
  while (!ready.empty()) {
    const int task = ready.top();
    ready.pop();
    scheduler.Place(task, device.subspan(static_cast<size_t>(task), 1));
    for (int next : problem.successors[task]) {
      if (--waiting[next] == 0) ready.push(next);
    }
  }
  return scheduler.Finish();
}

}  // namespace heteroplace
