#include "list/m_sct.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "list/engine/list_scheduler.h"
#include "list/engine/ranks.h"
#include "list/engine/ready_queue.h"

namespace heteroplace::list {

namespace {

constexpr int64_t kNoRoom = -1;

/*!
 * \brief Finds the ready task that is urgent first: whose latest start over its devices is least.
 *
 * As in ReadyQueue keys only grow, and tasks that wait for the last of all devices to become free
 * lie in a backlog. Pairs hold the device of the latest start.
 */
class UrgentQueue {
 public:
  UrgentQueue(const model::Problem& problem, const ListScheduler& scheduler,
              const ReadyQueue& ready, std::span<const double> level)
      : problem_(problem), scheduler_(scheduler), ready_(ready), level_(level) {}

  void Enter(int task) {
    const ReadyPair pair = Judge(task);
    if (pair.device >= 0) Enter(pair);
  }

  /*! \brief The most urgent pair if it comes before the limit; else false. It stays in. */
  bool Peek(const ReadyPair& limit, ReadyPair& pair) {
    while (true) {
      ReadyPair key;
      std::vector<ReadyPair>* top = nullptr;
      for (auto* heap : {&timed_, &backlog_}) {
        if (heap->empty()) continue;
        ReadyPair first = heap->front();
        if (heap == &backlog_) first.time_ns = LastAvailableNs();
        if (top != nullptr && !(first < key)) continue;
        top = heap;
        key = first;
      }
      if (top == nullptr || !(key < limit)) return false;
      std::ranges::pop_heap(*top, IsLater);
      top->pop_back();
      if (!ready_.IsReady(key.task)) continue;
      pair = Judge(key.task);
      if (pair.device < 0) continue;
      Enter(pair);
      if (!(key < pair)) return true;
    }
  }

 private:
  ReadyPair Judge(int task) {
    ReadyPair latest;
    for (int device : ready_.Choices(task)) {
      scheduler_.Try(task, device, trial_);
      if (trial_.violation != 0) continue;
      if (latest.device >= 0 && trial_.start_ns <= latest.time_ns) continue;
      // Its run time is left out: it would fall when another device becomes the latest.
      latest = {0, trial_.start_ns, level_[task], 0, task, device};
    }
    return latest;
  }

  void Enter(const ReadyPair& pair) {
    const bool waits_for_last = WaitsForEach(pair.task) && pair.time_ns == LastAvailableNs();
    auto& heap = waits_for_last ? backlog_ : timed_;
    heap.push_back(pair);
    if (&heap == &backlog_) heap.back().time_ns = 0;
    std::ranges::push_heap(heap, IsLater);
  }

  /*! \brief Whether the task may go to every device and starts there behind all that it has. */
  bool WaitsForEach(int task) const {
    const auto choices = ready_.Choices(task);
    return choices.size() == static_cast<size_t>(problem_.num_devices) &&
           std::ranges::all_of(choices,
                               [this, task](int device) { return problem_.Run(task, device) > 0; });
  }

  int64_t LastAvailableNs() const {
    int64_t last = 0;
    for (int device = 0; device < problem_.num_devices; ++device) {
      last = std::max(last, scheduler_.AvailableNs(device));
    }
    return last;
  }

  const model::Problem& problem_;
  const ListScheduler& scheduler_;
  const ReadyQueue& ready_;
  std::span<const double> level_;
  std::vector<ReadyPair> timed_;
  std::vector<ReadyPair> backlog_;  // time_ns is 0: they wait for the last device
  Candidate trial_;
};

class SctPlacer {
 public:
  SctPlacer(const model::Problem& problem, std::span<const int> favourite, const Watch& watch)
      : problem_(problem),
        favourite_(favourite),
        level_(UpwardRanks(problem)),
        scheduler_(problem, watch, Freeing::kNever),
        queue_(problem, scheduler_, problem.allowed, level_, Earliest::kStart),
        urgent_(problem, scheduler_, queue_, level_),
        latest_(static_cast<size_t>(problem.num_devices), -1),
        awaited_(static_cast<size_t>(problem.num_devices)) {}

  model::NativePlan Run() {
    for (int task : queue_.touched()) urgent_.Enter(task);
    ReadyPair pair;
    Candidate candidate;
    while (Next(pair, candidate)) {
      scheduler_.Commit(pair.task, candidate);
      latest_[pair.device] = pair.task;
      queue_.Placed(pair.task, candidate);
      for (int task : queue_.touched()) urgent_.Enter(task);
      for (int device = 0; device < problem_.num_devices; ++device) {
        awaited_[device] = Awaited(device);
        const int child = awaited_[device].task;
        queue_.LockFrom(device, child < 0 ? ReadyQueue::kNever : MadeNs(child));
      }
    }
    return scheduler_.Finish();
  }

 private:
  /*! \brief The pair to place now: of a free device, an awaited child, or an urgent task. */
  bool Next(ReadyPair& pair, Candidate& candidate) {
    bool has_pair = queue_.Pop(pair, candidate);
    const ReadyPair* awaited = nullptr;
    for (const ReadyPair& child : awaited_) {
      if (child.task >= 0 && (awaited == nullptr || child < *awaited)) awaited = &child;
    }
    if (awaited == nullptr) return has_pair;
    // Among equal starts a child takes the device that waits for it.
    const bool is_same = has_pair && pair.task == awaited->task && pair.fault == 0 &&
                         awaited->time_ns <= pair.time_ns;
    if (!has_pair || is_same || *awaited < pair) {
      if (has_pair) queue_.Return(pair);
      Take(*awaited, pair, candidate);
    }
    ReadyPair urgent;
    if (urgent_.Peek(pair, urgent) && urgent.task != pair.task) {
      queue_.Return(pair);
      Take(urgent, pair, candidate);
    }
    return true;
  }

  void Take(const ReadyPair& chosen, ReadyPair& pair, Candidate& candidate) {
    pair = chosen;
    scheduler_.Try(pair.task, pair.device, candidate);
  }

  /*! \brief When the last producer of a ready task is done. */
  int64_t MadeNs(int task) const {
    int64_t made = 0;
    for (int before : problem_.predecessors[task]) {
      made = std::max(made, scheduler_.FinishNs(before));
    }
    return made;
  }

  /*! \brief The ready child that the device waits for; task -1: the device is not awake. */
  ReadyPair Awaited(int device) {
    if (latest_[device] < 0) return {};
    const int child = favourite_[latest_[device]];
    if (child < 0 || !queue_.IsReady(child)) return {};
    int64_t here = kNoRoom;
    int64_t least = kNoRoom;
    for (int other : queue_.Choices(child)) {
      scheduler_.Try(child, other, trial_);
      if (trial_.violation != 0) continue;
      if (least == kNoRoom || trial_.start_ns < least) least = trial_.start_ns;
      if (other == device) here = trial_.start_ns;
    }
    if (here == kNoRoom || here != least) return {};
    return {0, here, level_[child], problem_.Run(child, device), child, device};
  }

  const model::Problem& problem_;
  std::span<const int> favourite_;
  std::vector<double> level_;
  ListScheduler scheduler_;
  ReadyQueue queue_;
  UrgentQueue urgent_;
  std::vector<int> latest_;         // [num_devices], the task placed last; -1: none
  std::vector<ReadyPair> awaited_;  // [num_devices], what it is awake for; task -1: not awake
  Candidate trial_;
};

}  // namespace

model::NativePlan MSct(const model::Problem& problem, std::span<const int> favourite,
                       const Watch& watch) {
  return SctPlacer(problem, favourite, watch).Run();
}

}  // namespace heteroplace::list
