#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "list/engine/reservation_table.h"
#include "list/engine/watch.h"
#include "model/memory_use.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief A copy that a candidate placement would need, with the slot found for it. */
struct PendingCopy {
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
  int64_t violation = 0;  // bytes that its memory lacks, plus penalties for unreachable tensors
  std::vector<PendingCopy> copies;
};

/*! \brief How memory is counted while a plan grows. */
enum class Freeing {
  kByReaders,  // where the static rule lacks memory, without tensors that nobody reads any more
  kNever,      // by the static rule alone: what lacks memory once always does
};

/*! \brief Where on its units a task may start. */
enum class Insertion {
  kGaps,  // in the first gap
  kEnd,   // behind all that they have
};

/*!
 * \brief Grows a plan task by task: the one engine of all list schedulers.
 *
 * A task takes the first gap of its units, or their end, after its tensors have arrived. A copy
 * takes the first common gap of all that its route occupies, and is made once for each (tensor,
 * memory). Where the static rule lacks memory, tensors count until the last task that reads them is
 * placed; what the plan really lacks is found at the end. The tasks of a group are charged as a
 * whole with the first of them, which also fixes the device of the others. Time of Try and Commit:
 * O(reads * log).
 */
class ListScheduler {
 public:
  /*! \param watch Asked every kTriesPerAsk tries. */
  ListScheduler(const model::Problem& problem, Watch watch, Freeing freeing = Freeing::kByReaders,
                Insertion insertion = Insertion::kGaps);

  /*!
   * \brief Finds the earliest run of the task on a device; its producers must be placed.
   * \return False if it cannot end by `latest_ns`: `trial` is then not to be read.
   */
  bool Try(int task, int device, Candidate& trial, int64_t latest_ns = kAnyTime) const;
  /*! \brief Does what Try found; nothing may have been committed in between. */
  void Commit(int task, const Candidate& chosen);
  /*!
   * \brief Puts a task where its key is least.
   * \param keys `Of` finds the key of a Candidate that Try filled, `LatestFinish` when it has to
   * end to have one below another.
   */
  template <typename Keys>
  void PlaceBest(int task, std::span<const int> devices, const Keys& keys) {
    decltype(keys.Of(task, trial_)) least;
    bool is_first = true;
    const auto limit = [&](int device) {
      return is_first ? kAnyTime : keys.LatestFinish(task, device, least);
    };
    TryOn(task, Choices(task, devices), trial_, limit, [&] {
      const auto found = keys.Of(task, trial_);
      if (!is_first && !(found < least)) return;
      is_first = false;
      least = found;
      std::swap(best_, trial_);
    });
    Commit(task, best_);
  }
  /*!
   * \brief Tries a task on devices; where they are many, on the one that promises most first, and
   * of the others on those that links without other copies would let end early enough.
   * \param limit `limit(device)`, when it has to end there to be of interest; asked of many devices
   * \param visit Called for each that does, with what was found in `trial`
   */
  template <typename Limit, typename Visit>
  void TryOn(int task, std::span<const int> devices, Candidate& trial, const Limit& limit,
             const Visit& visit) {
    const bool are_many = devices.size() > kFewDevices;
    const int first = are_many ? FindLeastReady(task, devices) : -1;
    if (are_many && Try(task, first, trial, limit(first))) visit();
    for (int device : devices) {
      if (device == first) continue;
      if (Try(task, device, trial, are_many ? limit(device) : kAnyTime)) visit();
    }
  }
  /*! \brief Copies the outputs to the host, in the order they are made; returns the plan. */
  model::NativePlan Finish();

  /*! \brief The device of the task's group; -1: it is free to choose. */
  int GroupDevice(int task) const {
    const int group = problem_.task_group[task];
    return group < 0 ? -1 : group_device_[group];
  }
  /*! \brief The one device of a fixed group, else the given devices. */
  std::span<const int> Choices(int task, std::span<const int> devices) const {
    const int group = problem_.task_group[task];
    const bool is_fixed = group >= 0 && group_device_[group] >= 0;
    return is_fixed ? std::span<const int>(&group_device_[group], 1) : devices;
  }
  /*! \brief Longest transfer to the host of the model outputs that the task makes. */
  int64_t OutputTransfer(int task, int device) const;
  /*! \brief When all that was placed on the device's units is done. */
  int64_t AvailableNs(int device) const;
  /*! \brief Device of a placed task; -1: not placed yet. */
  int device(int task) const { return plan_.device[task]; }
  /*! \brief When a placed task is done. */
  int64_t FinishNs(int task) const {
    return plan_.start_ns[task] + problem_.Run(task, plan_.device[task]);
  }
  /*! \brief When the tensor is in the memory; kNotThere: it is not. */
  int64_t There(int tensor, int memory) const { return there_ns_[At(tensor, memory)]; }
  /*! \brief Latest finish so far. */
  int64_t makespan_ns() const { return plan_.makespan_ns; }
  /*! \brief Bytes in use of a memory. */
  int64_t UsedBytes(int memory) const { return use_.used()[memory] - released_[memory]; }

  static constexpr int64_t kNotThere = -1;
  static constexpr int64_t kAnyTime = std::numeric_limits<int64_t>::max() / 2;
  static constexpr int kTriesPerAsk = 1024;  // 0.2 ms

 private:
  static constexpr size_t kFewDevices = 8;  // up to which asking first which are late does not pay

  size_t At(int tensor, int memory) const {
    return static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
           static_cast<size_t>(memory);
  }
  /*! \brief Earliest slot on all resources of a route, clear of the pending copies too. */
  int64_t FindTransfer(int src, int dst, int64_t ready, int64_t duration,
                       const std::vector<PendingCopy>& pending) const;
  bool SharesResource(std::span<const int> resources, int src, int dst) const;
  int64_t FindRun(int device, int64_t ready, int64_t duration) const;
  /*!
   * \brief Fills `least_ready_ns_` for Try with limits.
   * \return The device that would end first behind all that was placed on it.
   */
  int FindLeastReady(int task, std::span<const int> devices);
  /*! \brief Counts in it when a tensor is in each memory, if links are busy on departure alone. */
  void FindLeastArrival(int tensor);
  /*! \brief Bytes that the task brings; for the first of a group those of the whole group. */
  int64_t ExtraBytes(int task, int device) const;
  void CommitCopy(const model::ScheduledCopy& copy);
  /*! \brief Bytes that a memory lacks if it gets so many more. */
  int64_t Lack(int memory, int64_t extra_bytes) const;
  /*! \brief Frees what nobody reads any more now that the task is placed. */
  void Release(int task);
  void ReleaseTensor(int tensor);

  /*! \brief Counts a try; every so often the watch is asked. */
  void Ask() const;

  const model::Problem& problem_;
  Watch watch_;
  Insertion insertion_;
  mutable int tries_ = 0;  // since it was asked
  model::MemoryUse use_;
  std::vector<ReservationTable> busy_;  // [num_resources]
  std::vector<int64_t> there_ns_;       // [num_tensors][num_memories]
  std::vector<int> home_;               // [num_tensors], memory where it is made; -1: not yet
  std::vector<int> group_device_;       // [num_groups], -1: not chosen yet
  std::vector<int> num_readers_;        // [num_tensors], to be placed yet; empty: static rule
  std::vector<int64_t> released_;       // [num_memories], bytes in use_ that are free again
  // Of FindLeastReady, [num_memories]: when the task has all that it reads there at the earliest,
  // and what the copy of one tensor takes.
  std::vector<int64_t> least_ready_ns_, transfer_ns_;
  model::NativePlan plan_;
  Candidate best_, trial_;  // of PlaceBest, kept for their storage
};

}  // namespace heteroplace::list
