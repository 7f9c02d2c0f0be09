#include "list/fill.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "list/engine/list_scheduler.h"

namespace heteroplace::list {

namespace {

class Filler {
 public:
  Filler(const model::Problem& problem, std::span<const int64_t> capacity, FillRule rule)
      : problem_(problem),
        rule_(rule),
        room_(capacity.begin(), capacity.end()),
        workspace_(static_cast<size_t>(problem.num_devices), 0),
        is_present_(static_cast<size_t>(problem.num_tensors) *
                    static_cast<size_t>(problem.num_memories)),
        stamp_(static_cast<size_t>(problem.num_tensors), 0),
        num_readers_(static_cast<size_t>(problem.num_tensors), 0),
        group_device_(static_cast<size_t>(problem.num_groups), -1),
        device_(static_cast<size_t>(problem.num_tasks), -1),
        memory_devices_(static_cast<size_t>(problem.num_memories)) {
    for (size_t memory = 0; memory < room_.size(); ++memory) {
      room_[memory] -= problem.base_bytes[memory];
    }
    for (int device = 0; device < problem.num_devices; ++device) {
      memory_devices_[problem.device_memory[device]].push_back(device);
    }
    for (int tensor : problem.task_reads.values) ++num_readers_[tensor];
    RankMemories();
  }

  /*! \brief Places the next task of the order, unless the first of its group has placed it. */
  void Place(int task) {
    const int group = problem_.task_group[task];
    if (group < 0 || group_device_[group] < 0) {
      const std::span<const int> tasks = problem_.Colocated(task);
      const auto [device, position] = Choose(tasks, Charged(task, tasks));
      if (group >= 0) group_device_[group] = device;
      for (int member : tasks) device_[member] = device;
      Charge(tasks, Charged(task, tasks), device);
      if (position > current_) current_ = position;
    } else if (problem_.counts_lifetimes) {
      Charge({}, {&task, 1}, device_[task]);
    }
    if (problem_.counts_lifetimes) Release(task);
  }

  std::vector<int> Take() { return std::move(device_); }

 private:
  void RankMemories() {
    const int64_t never = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> total(room_.size(), 0);
    for (int task = 0; task < problem_.num_tasks; ++task) {
      std::vector<int64_t> fastest(room_.size(), never);
      int64_t slowest = 0;
      for (int device : problem_.allowed[task]) {
        int64_t& best = fastest[problem_.device_memory[device]];
        best = std::min(best, problem_.Run(task, device));
        slowest = std::max(slowest, problem_.Run(task, device));
      }
      // A task that cannot be there counts as on its slowest device.
      for (size_t memory = 0; memory < room_.size(); ++memory) {
        total[memory] += fastest[memory] == never ? slowest : fastest[memory];
      }
    }
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      if (!memory_devices_[memory].empty()) memories_.push_back(memory);
    }
    std::ranges::stable_sort(memories_,
                             [&total](int left, int right) { return total[left] < total[right]; });
  }

  /*! \brief Tasks of a group whose tensors count when it is placed: by lifetime the first only, as
   * the others have theirs later, when much of the first may be free again. */
  std::span<const int> Charged(const int& task, std::span<const int> tasks) const {
    return problem_.counts_lifetimes ? std::span<const int>(&task, 1) : tasks;
  }

  /*! \brief Device for the tasks, and the position that is filled from now on. */
  std::pair<int, size_t> Choose(std::span<const int> tasks, std::span<const int> charged) {
    const size_t count = memories_.size();
    int64_t least = std::numeric_limits<int64_t>::max();
    int chosen = -1;
    bool is_passing_allowed = false;  // Some memory that was passed over could run them.
    for (size_t step = 0; step < count; ++step) {
      const size_t position = (current_ + step) % count;
      const bool is_behind = position < current_;
      const int device = Fastest(tasks, memories_[position]);
      if (device < 0) continue;
      const bool may_go = !is_behind || rule_ == FillRule::kReturn || !is_passing_allowed;
      const int64_t lack =
          may_go ? BytesNeeded(tasks, charged, device) - room_[memories_[position]] : least;
      if (may_go && lack <= 0) {
        return {device, !is_behind && is_passing_allowed ? position : current_};
      }
      if (lack < least) {
        least = lack;
        chosen = device;
      }
      is_passing_allowed = true;
    }
    return {chosen, current_};
  }

  /*! \brief The device of the memory that runs the tasks in least time; -1: it cannot. */
  int Fastest(std::span<const int> tasks, int memory) const {
    int best = -1;
    int64_t best_run = 0;
    for (int device : memory_devices_[memory]) {
      if (problem_.Run(tasks.front(), device) == model::kImpossible) continue;
      int64_t run = 0;
      for (int task : tasks) run += problem_.Run(task, device);
      if (best >= 0 && run >= best_run) continue;
      best = device;
      best_run = run;
    }
    return best;
  }

  /*! \brief Bytes of weights and workspace of `tasks`, and of tensors of `charged`. */
  int64_t BytesNeeded(std::span<const int> tasks, std::span<const int> charged, int device) {
    const int memory = problem_.device_memory[device];
    int64_t total = 0;
    int64_t workspace = workspace_[device];
    ++stamp_now_;
    for (int task : tasks) {
      total += problem_.weight_bytes[task];
      workspace = std::max(workspace, problem_.workspace_bytes[task]);
    }
    for (int task : charged) {
      for (int tensor : problem_.task_makes[task]) total += NewBytes(tensor, memory);
      for (int tensor : problem_.task_reads[task]) total += NewBytes(tensor, memory);
    }
    return total + workspace - workspace_[device];
  }

  /*! \brief Bytes of a tensor that is not in the memory yet; counted once for each stamp. */
  int64_t NewBytes(int tensor, int memory) {
    const bool is_everywhere = problem_.producer[tensor] < 0 && problem_.host < 0;
    const bool is_kept = memory == problem_.host && problem_.IsChargedToHost(tensor);
    if (is_everywhere || is_kept || is_present_[At(tensor, memory)] != 0) return 0;
    if (stamp_[tensor] == stamp_now_) return 0;
    stamp_[tensor] = stamp_now_;
    return problem_.tensor_bytes[tensor];
  }

  void Charge(std::span<const int> tasks, std::span<const int> charged, int device) {
    const int memory = problem_.device_memory[device];
    room_[memory] -= BytesNeeded(tasks, charged, device);
    for (int task : tasks) {
      workspace_[device] = std::max(workspace_[device], problem_.workspace_bytes[task]);
    }
    for (int task : charged) {
      for (int tensor : problem_.task_makes[task]) is_present_[At(tensor, memory)] = 1;
      for (int tensor : problem_.task_reads[task]) is_present_[At(tensor, memory)] = 1;
    }
  }

  /*! \brief Frees what nobody reads after the task; outputs stay. */
  void Release(int task) {
    for (int tensor : problem_.task_reads[task]) {
      if (--num_readers_[tensor] == 0) ReleaseTensor(tensor);
    }
    for (int tensor : problem_.task_makes[task]) {
      if (num_readers_[tensor] == 0) ReleaseTensor(tensor);
    }
  }

  void ReleaseTensor(int tensor) {
    const bool is_everywhere = problem_.producer[tensor] < 0 && problem_.host < 0;
    if (is_everywhere || problem_.is_output[tensor] != 0) return;
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      const bool is_kept = memory == problem_.host && problem_.IsChargedToHost(tensor);
      if (is_kept || is_present_[At(tensor, memory)] == 0) continue;
      is_present_[At(tensor, memory)] = 0;
      room_[memory] += problem_.tensor_bytes[tensor];
    }
  }

  size_t At(int tensor, int memory) const {
    return static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
           static_cast<size_t>(memory);
  }

  const model::Problem& problem_;
  FillRule rule_;
  std::vector<int64_t> room_;        // [num_memories]
  std::vector<int64_t> workspace_;   // [num_devices], largest so far
  std::vector<uint8_t> is_present_;  // [num_tensors][num_memories]
  std::vector<int64_t> stamp_;       // [num_tensors]
  int64_t stamp_now_ = 0;
  std::vector<int> num_readers_;                  // [num_tensors], whose turn is still to come
  std::vector<int> group_device_;                 // [num_groups], -1: not chosen yet
  std::vector<int> device_;                       // [num_tasks]
  std::vector<std::vector<int>> memory_devices_;  // [num_memories]
  std::vector<int> memories_;                     // with devices, fastest first
  size_t current_ = 0;                            // position in memories_
};

}  // namespace

std::vector<int> FillMemories(const model::Problem& problem, std::span<const int> order,
                              std::span<const int64_t> capacity, FillRule rule) {
  Filler filler(problem, capacity, rule);
  for (int task : order) filler.Place(task);
  return filler.Take();
}

std::vector<int64_t> UniformCapacity(const model::Problem& problem) {
  std::vector<uint8_t> has_device(static_cast<size_t>(problem.num_memories), 0);
  for (int memory : problem.device_memory) has_device[memory] = 1;
  const int64_t count =
      std::max<int64_t>(1, std::accumulate(has_device.begin(), has_device.end(), int64_t{0}));
  int64_t total = 0;
  int64_t largest = 0;
  for (int task = 0; task < problem.num_tasks; ++task) {
    int64_t bytes = problem.weight_bytes[task] + problem.workspace_bytes[task];
    for (int tensor : problem.task_makes[task]) bytes += problem.tensor_bytes[tensor];
    total += bytes;
    largest = std::max(largest, bytes);
  }
  std::vector<int64_t> capacity = problem.memory_bytes;
  for (int64_t& bytes : capacity) bytes = std::min(bytes, total / count + largest);
  return capacity;
}

model::NativePlan ScheduleInOrder(const model::Problem& problem, std::span<const int> device,
                                  std::span<const int> order) {
  ListScheduler scheduler(problem, nullptr);
  Candidate only;
  for (int task : order) {
    scheduler.Try(task, device[task], only);
    scheduler.Commit(task, only);
  }
  return scheduler.Finish();
}

}  // namespace heteroplace::list
