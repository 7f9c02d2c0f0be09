#include "sched/m_sct.h"

#include <algorithm>
#include <vector>

#include "sched/list_scheduler.h"
#include "sched/ranks.h"
#include "sched/ready_queue.h"

namespace heteroplace {

namespace {

class SctPlacer {
 public:
  SctPlacer(const Problem& problem, std::span<const int> favourite)
      : problem_(problem),
        favourite_(favourite),
        parent_(static_cast<size_t>(problem.num_tasks), -1),
        level_(UpwardRanks(problem)),
        scheduler_(problem),
        queue_(problem, scheduler_, problem.allowed, level_, Earliest::kStart),
        latest_(static_cast<size_t>(problem.num_devices), -1),
        awaited_(static_cast<size_t>(problem.num_devices), -1) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      if (favourite[task] >= 0) parent_[favourite[task]] = task;
    }
  }

  Schedule Run() {
    ReadyPair pair;
    Candidate candidate;
    while (queue_.Pop(pair, candidate)) {
      const int awaited = awaited_[pair.device];
      const bool is_held = pair.violation == 0 && awaited >= 0 && awaited != pair.task &&
                           !IsUrgent(pair.task, candidate.start_ns);
      if (is_held) {
        queue_.Hold(pair);
        continue;
      }
      PreferParent(pair, candidate);
      scheduler_.Commit(pair.task, candidate);
      latest_[pair.device] = pair.task;
      queue_.Placed(pair.task, candidate);
      RefreshAwaited();
    }
    return scheduler_.Finish();
  }

 private:
  /*! \brief Start of a task on a device; kNoRoom: it is not in the task's start table. */
  int64_t Start(int task, int device) {
    scheduler_.Try(task, device, trial_);
    return trial_.violation == 0 ? trial_.start_ns : kNoRoom;
  }

  bool IsUrgent(int task, int64_t now_ns) {
    for (int device : queue_.Choices(task)) {
      if (Start(task, device) > now_ns) return false;
    }
    return true;
  }

  /*! \brief The ready child that the device waits for; -1: the device is not awake. */
  int Awaited(int device) {
    if (latest_[device] < 0) return -1;
    const int child = favourite_[latest_[device]];
    if (child < 0 || !queue_.IsReady(child)) return -1;
    int64_t here = kNoRoom;
    int64_t least = kNoRoom;
    for (int other : queue_.Choices(child)) {
      const int64_t start = Start(child, other);
      if (start == kNoRoom) continue;
      if (least == kNoRoom || start < least) least = start;
      if (other == device) here = start;
    }
    return here != kNoRoom && here == least ? child : -1;
  }

  void RefreshAwaited() {
    for (int device = 0; device < problem_.num_devices; ++device) {
      const int before = awaited_[device];
      awaited_[device] = Awaited(device);
      if (awaited_[device] != before && queue_.IsHolding(device)) queue_.Release(device);
    }
  }

  /*! \brief Among equal starts a favourite child takes the device that waits for it. */
  void PreferParent(ReadyPair& pair, Candidate& candidate) {
    const int parent = parent_[pair.task];
    if (parent < 0) return;
    const int device = scheduler_.device(parent);
    if (device < 0 || device == pair.device || awaited_[device] != pair.task) return;
    if (Start(pair.task, device) > candidate.start_ns || trial_.violation != 0) return;
    pair.device = device;
    std::swap(candidate, trial_);
  }

  static constexpr int64_t kNoRoom = -1;

  const Problem& problem_;
  std::span<const int> favourite_;
  std::vector<int> parent_;  // [num_tasks], whose favourite child it is; -1: of none
  std::vector<double> level_;
  ListScheduler scheduler_;
  ReadyQueue queue_;
  std::vector<int> latest_;   // [num_devices], the task placed last; -1: none
  std::vector<int> awaited_;  // [num_devices], child that the device is awake for; -1: not awake
  Candidate trial_;
};

}  // namespace

Schedule MSct(const Problem& problem, std::span<const int> favourite) {
  return SctPlacer(problem, favourite).Run();
}

}  // namespace heteroplace
