#pragma once

#include <span>
#include <vector>

#include "search/branches.h"
#include "search/moves/arrangement.h"
#include "support/random.h"

namespace heteroplace::search {

/*! \brief Random changes of an arrangement. */
class Moves {
 public:
  Moves(const model::Problem& problem, const decompose::Module& module, const Branches& branches,
        Arrangement& arrangement, Random& random);

  /*!
   * \brief From now on moves only tasks at positions in [first, last) of the order, within them;
   * branches, and groups to other devices, only if that is everything.
   */
  void StayWithin(int first, int last);
  /*! \brief Makes a random move; false if it changed nothing. */
  bool Propose();

 private:
  int PickAny() { return arrangement_.order()[first_ + random_.Below(last_ - first_)]; }
  /*! \brief Whether no task outside would move with it. */
  bool CanMove(int task) const { return is_all_ || module_.group[task] < 0; }
  int PickMovable() { return movable_[random_.Below(static_cast<int>(movable_.size()))]; }
  std::span<const int> PickBranch() {
    return branches_.tasks[random_.Below(branches_.tasks.num_rows())];
  }
  int PickDevice(int task);
  bool IsAllowed(int task, int device) const;
  void MoveTask();
  void MovePath();
  void MoveSegment();
  void MoveBranch();
  void ExchangeTasks();
  void ExchangeBranches();
  void CopyBranch();
  void ShiftTask(int task);
  void ShiftBranch();
  void SetAll(std::span<const int> tasks, int device);

  const model::Problem& problem_;
  const decompose::Module& module_;
  const Branches& branches_;
  Arrangement& arrangement_;
  Random& random_;
  int first_ = 0;             // lowest position that moves
  int last_ = 0;              // behind the highest
  bool is_all_ = true;        // they are all positions
  std::vector<int> movable_;  // tasks with more than one allowed device
};

}  // namespace heteroplace::search
