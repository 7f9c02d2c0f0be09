#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "list/engine/list_scheduler.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief What the earliest pair is judged by. */
enum class Earliest { kStart, kFinish };

/*! \brief A ready task on a device, with the key it is ranked by. */
struct ReadyPair {
  int fault = 0;        // 0: none, 1: no room in memory, 2: a tensor cannot get there
  int64_t time_ns = 0;  // start or finish; in a backlog without what the device adds
  double level = 0;     // larger first
  int64_t run_ns = 0;   // less first
  int task = -1;
  int device = -1;

  bool operator<(const ReadyPair& other) const;
};

/*! \brief Order of std heaps: the earliest pair comes first. */
inline bool IsLater(const ReadyPair& left, const ReadyPair& right) { return right < left; }

/*!
 * \brief Finds the (ready task, device) pair that is earliest now, without looking at all of them.
 *
 * The scheduler must free no memory: then keys only grow while tasks are placed, except where a
 * copy or the first task of a group is placed; those pairs are entered again. So a pair whose key
 * is found unchanged at the top is the earliest. Pairs that wait for nothing but their device lie
 * in its backlog, ranked by what does not change while the device fills up: placing a task there
 * does not touch them. Pairs are placed in order of time, hence no task that is still waiting fits
 * into a gap before the end of what its device has.
 *
 * Ties: larger level, then less run time, then the lower task and device ids.
 */
class ReadyQueue {
 public:
  /*!
   * \param devices [num_tasks], where each task may go.
   * \param level [num_tasks]
   */
  ReadyQueue(const model::Problem& problem, const ListScheduler& scheduler,
             const model::Csr& devices, std::span<const double> level, Earliest rule);

  /*! \brief Takes out the earliest pair and tries it; false if there is none. */
  bool Pop(ReadyPair& pair, Candidate& candidate);
  /*! \brief Tells that a task was committed; its readers may become ready. */
  void Placed(int task, const Candidate& chosen);
  /*! \brief Puts a popped pair back. */
  void Return(const ReadyPair& pair) { Enter(pair); }
  /*! \brief Leaves out the pairs of a device that start at or after the time; kNever: none. */
  void LockFrom(int device, int64_t time_ns) { locked_from_ns_[device] = time_ns; }
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  /*! \brief Tasks that became ready, or may start earlier than before, by the latest Placed. */
  const std::vector<int>& touched() const { return touched_; }
  /*! \brief Whether all producers of the task are placed and the task is not. */
  bool IsReady(int task) const { return waiting_[task] == 0 && scheduler_.device(task) < 0; }
  /*! \brief Where the task may go now. */
  std::span<const int> Choices(int task) const { return scheduler_.Choices(task, devices_[task]); }

 private:
  ReadyPair Judge(int task, int device);
  void Enter(ReadyPair pair);
  void EnterAll(int task);
  bool IsGone(const ReadyPair& pair) const;
  int64_t BacklogNs(int device) const { return scheduler_.AvailableNs(device); }
  /*! \brief Heap whose first pair is the earliest, -1: all are empty; sets its key. */
  int Top(ReadyPair& key) const;

  const model::Problem& problem_;
  const ListScheduler& scheduler_;
  const model::Csr& devices_;
  std::span<const double> level_;
  Earliest rule_;
  model::Csr readers_;                         // [num_tensors], task ids
  std::vector<size_t> waiting_;                // [num_tasks], producers that are not placed
  std::vector<std::vector<ReadyPair>> heaps_;  // [2 * num_devices]: timed, backlog
  std::vector<int64_t> locked_from_ns_;        // [num_devices]; kNever: it is not locked
  std::vector<int> touched_;
  Candidate trial_;
};

/*!
 * \brief Places the earliest pair again and again: ETF (Hwang, Chow, Anger, Lee 1989, section 3,
 * DOI 10.1137/0218016) by finish, m-ETF (Jeon et al., "Baechi", SoCC 2020, section 3,
 * DOI 10.1145/3419111.3421302) by start.
 *
 * The processors of ETF's paper are equal; on unrelated devices the earliest start sends long tasks
 * to slow devices that happen to be idle, so there it is the finish. Pairs without room in memory
 * come after all others. The memory of a group is charged with its first task.
 *
 * \param devices [num_tasks], where each task may go.
 * Complexity: O(reads * num_devices * log) unless many pairs wait for one link.
 */
model::NativePlan PlaceEarliest(const model::Problem& problem, const model::Csr& devices,
                                Earliest rule, const Watch& watch);

}  // namespace heteroplace::list
