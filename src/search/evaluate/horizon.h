#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/native_plan.h"
#include "search/evaluate/pair_table.h"
#include "search/moves/arrangement.h"

namespace heteroplace::search {

/*!
 * \brief What a plan does from a position of the order on, as times behind what is there then.
 *
 * If decisions from the position on stay as they are, the makespan is the largest sum of the time
 * when something becomes free or arrives and of the time behind it. That is exact where the same
 * copies are made from the position on in the same order; on channels they may find other gaps.
 */
struct Horizon {
  /*! \brief A tensor made before the position, or never, that is needed from there on. */
  struct Waiting {
    int tensor;
    int memory;            // where it is read, or the host that an output goes to
    int64_t tail_ns;       // from its arrival to the end of all
    int copy_src;          // where it is copied from behind the position; kNoCopy: it is not
    int64_t copy_tail_ns;  // from the start of that copy to the end of all
  };

  int position = 0;                       // first of the order that stays as it is
  std::vector<int64_t> resource_tail_ns;  // [num_resources], kUnused: none of its use is left
  std::vector<Waiting> waiting;           // by tensor and memory, each once
  int64_t num_unreachable = 0;            // memories that tensors made behind it cannot reach

  static constexpr int64_t kUnused = -1;
  static constexpr int kNoCopy = -1;
};

/*!
 * \brief Longest times from the start of each task and copy of a plan to the end of all.
 *
 * Paths lead from a task to its readers, from a tensor to its copies and theirs, and from each use
 * of a unit or channel to the next one. Not thread-safe.
 */
class Tails {
 public:
  /*! \brief All three must outlive this. */
  Tails(const model::Problem& problem, const decompose::Module& module,
        const Arrangement& arrangement)
      : problem_(problem),
        module_(module),
        arrangement_(arrangement),
        copy_tail_(module.num_tensors, module.num_memories) {}

  /*!
   * \brief Finds the tails of a plan. Complexity: O((tasks + copies) log(tasks + copies) +
   * reads).
   * \param finish_ns [num_tasks]
   * \param copies In order of making, with local tensor ids.
   * \param copy_position Of the first reader of each copy; num_tasks: it leaves at the end.
   */
  void Find(std::span<const int64_t> finish_ns, std::span<const model::ScheduledCopy> copies,
            std::span<const int> copy_position);
  /*!
   * \brief The horizon at a position; from there on the arrangement must be as it was in Find.
   * Complexity: O(tasks + reads + copies).
   */
  Horizon At(int position) const;

 private:
  struct Use {
    int64_t start_ns;
    int64_t finish_ns;
    int position;  // of the task, or of the first reader of the copy
    int64_t tail_ns;
  };
  struct CopyTail {
    int src = Horizon::kNoCopy;
    int position = 0;  // of the first reader
    int64_t tail_ns = 0;
  };

  int64_t AddUse(std::span<const int> resources, const Use& use);
  int64_t ResourceTail(const std::vector<Use>& uses, int position) const;
  /*! \brief Whether no copy is made to a memory: it is there, or nothing can bring it there. */
  bool NeedsNoCopy(int tensor, int home, int memory) const {
    return home < 0 || home == memory ||
           module_.Transfer(tensor, home, memory) == model::kImpossible;
  }

  const model::Problem& problem_;
  const decompose::Module& module_;
  const Arrangement& arrangement_;
  std::vector<int64_t> task_tail_ns_;  // [num_tasks], from its start
  PairTable<CopyTail> copy_tail_;
  std::vector<std::vector<Use>> uses_;  // [num_resources], latest first
};

}  // namespace heteroplace::search
