#pragma once

#include <span>
#include <vector>

#include "sched/random.h"
#include "search/arrangement.h"

namespace heteroplace {

/*! \brief Random changes of an arrangement. */
class Moves {
 public:
  Moves(const Problem& problem, const Piece& piece, const Csr& branches, Arrangement& arrangement,
        Random& random);

  /*! \brief Makes a random move; false if it changed nothing. */
  bool Propose();

 private:
  int PickMovable() { return movable_[random_.Below(static_cast<int>(movable_.size()))]; }
  int PickDevice(int task);
  bool IsAllowed(int task, int device) const;
  void MoveTask();
  void MoveChain();
  void MoveWindow();
  void MoveBranch();
  void ExchangeTasks();
  void ExchangeBranches();
  void ShiftTask(int task);
  void ShiftBranch();
  void SetAll(std::span<const int> tasks, int device);

  const Problem& problem_;
  const Piece& piece_;
  const Csr& branches_;
  Arrangement& arrangement_;
  Random& random_;
  std::vector<int> movable_;  // tasks with more than one allowed device
};

}  // namespace heteroplace
