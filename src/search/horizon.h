#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/schedule.h"
#include "search/arrangement.h"

namespace heteroplace {

/*!
 * \brief What a schedule does from a position of the order on, as times behind what is there then.
 *
 * If decisions from the position on stay as they are, the makespan is the largest sum of the time
 * when something becomes free or arrives and of the time behind it, but for copies that would find
 * other gaps.
 */
struct Horizon {
  struct Waiting {
    int tensor;       // made before the position
    int memory;       // where it is read behind it
    int64_t tail_ns;  // from its arrival to the end of all
  };

  int position = 0;
  std::vector<int64_t> resource_tail_ns;  // [num_resources], kUnused: none of its use is left
  std::vector<Waiting> waiting;

  static constexpr int64_t kUnused = -1;
};

/*!
 * \brief Longest times from the start of each task and copy of a schedule to the end of all.
 *
 * Paths lead from a task to its readers, from a tensor to its copies and theirs, and from each use
 * of a unit or link to the next one.
 */
class Tails {
 public:
  Tails(const Problem& problem, const Piece& piece, const Arrangement& arrangement)
      : problem_(problem), piece_(piece), arrangement_(arrangement) {}

  /*!
   * \brief Finds the tails of a schedule. Complexity: O((tasks + copies) log(tasks + copies)).
   * \param finish_ns [num_tasks]
   * \param copies In order of making, with local tensor ids.
   * \param copy_position Of the first reader of each copy.
   */
  void Find(std::span<const int64_t> finish_ns, std::span<const ScheduledCopy> copies,
            std::span<const int> copy_position);
  /*! \brief The horizon at a position. Complexity: O(tasks + reads + copies). */
  Horizon At(int position) const;

 private:
  struct Use {
    int64_t start_ns;
    int64_t finish_ns;
    int position;
    int64_t tail_ns;
  };

  const Problem& problem_;
  const Piece& piece_;
  const Arrangement& arrangement_;
  std::vector<int64_t> task_tail_ns_;   // [num_tasks], from its start
  std::vector<std::vector<Use>> uses_;  // [num_resources], latest first
};

}  // namespace heteroplace
