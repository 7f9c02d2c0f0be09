#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "list/engine/reservation_table.h"
#include "list/evaluate.h"
#include "model/native_plan.h"
#include "search/evaluate/horizon.h"
#include "search/evaluate/pair_table.h"
#include "search/moves/arrangement.h"

namespace heteroplace::search {

/*!
 * \brief Times of an arrangement, evaluated again only where a change has an effect.
 *
 * Tasks are taken in the order; each starts when its units are free of the tasks before it and its
 * tensors have arrived. A copy is made for the first reader in a memory and takes the first gap of
 * its resources. The state is kept at checkpoints along the order: a change is replayed from the
 * checkpoint before it, until a checkpoint after it where the state is as it was, or until the
 * makespan is sure to exceed a limit: by the shortest path behind a task, or by the run times of
 * the tasks that are still to come on a unit. Not thread-safe; does not allocate after warming up.
 */
class ModuleEvaluator {
 public:
  /*! \param keeps_checkpoints False: nothing will be tried, only evaluated as a whole. */
  ModuleEvaluator(const model::Problem& problem, const decompose::Module& module,
                  const Arrangement& arrangement, bool keeps_checkpoints = true);

  /*! \brief Evaluates the whole arrangement and keeps the result. */
  int64_t Evaluate();
  /*!
   * \brief Evaluates what changed since the latest Evaluate or Accept; kNever above the limit.
   * Must be followed by Accept (if it did not return kNever) or Reject.
   */
  int64_t Try(int64_t limit_ns);
  /*! \brief Keeps the result of the latest Try. */
  void Accept();
  /*! \brief Forgets it; the arrangement must go back too. */
  void Reject();

  /*!
   * \brief Evaluates again from a position on, where the arrangement may have changed for good, up
   * to a horizon, or to the end for nullptr; keeps the result.
   *
   * Changes may then be tried before the horizon only, and the makespan and what is unreachable are
   * what the horizon says. Up to the next Look to the end the horizons must be of one FindTails and
   * must not go back, and behind them the arrangement must stay as it was then.
   * \param first Before the horizon; nothing before it has changed since the latest Look.
   * \param horizon At a multiple of spacing(), before the last task; must outlive its use.
   */
  void Look(int first, const Horizon* horizon);
  /*! \brief Tasks between checkpoints. */
  int spacing() const { return spacing_; }

  /*! \brief The makespan that is kept. */
  int64_t makespan_ns() const { return makespan_ns_; }
  /*! \brief Tensors that could not reach a memory, in the result that is kept. */
  int64_t num_unreachable() const { return num_unreachable_; }
  /*! \brief Tensors that could not reach a memory, in the latest Try. */
  int64_t trial_unreachable() const { return trial_unreachable_; }
  /*! \brief Finish of a task in the result that is kept. */
  int64_t finish_ns(int task) const { return finish_ns_[task]; }
  /*! \brief The copies of an evaluation from scratch, with local tensor ids. */
  std::vector<model::ScheduledCopy> Copies();
  /*! \brief Longest times behind everything that is kept, from an evaluation from scratch. */
  void FindTails(Tails& tails);
  /*! \brief Tasks evaluated so far. */
  int64_t num_steps() const { return num_steps_; }

 private:
  /*! \brief When a tensor is in a memory, and for the reader at which position it was copied. */
  struct Arrival {
    int64_t time_ns = 0;
    int position = std::numeric_limits<int>::max();
    int evaluation = -1;
  };
  struct Checkpoint {
    std::vector<int64_t> unit_free_ns;
    std::vector<int64_t> load_ns;  // [num_units], of the tasks before
    std::vector<list::BoundedReservationTable> tables;
    int64_t makespan_ns = 0;      // of the tasks before
    size_t num_made = 0;          // copies before
    int64_t num_unreachable = 0;  // before
  };
  struct MadeCopy {
    size_t row;  // of the arrivals
    int64_t ready_ns;
  };

  /*! \brief Why a replay is made: of everything, to try changes, or again to keep them. */
  enum class Mode { kAll, kTrial, kAgain };

  int64_t Replay(int begin, Mode mode);
  bool RunTask(int task, int position);
  bool IsLate() const;
  void KeepReplay();
  /*! \brief Busy time of a resource that is no unit. */
  list::BoundedReservationTable& TableOf(int resource) {
    return tables_[static_cast<size_t>(resource - problem_.num_units)];
  }
  int64_t Arrive(int tensor, int memory, int position);
  int64_t MakeCopy(int tensor, size_t row, int src, int dst, int64_t ready);
  void CopyOutputs();
  void Save(Checkpoint& checkpoint) const;
  void Restore(const Checkpoint& checkpoint);
  bool IsEnd(int index, int position, Mode mode) const;
  bool HasConverged(int index) const;
  void RunBehind(const Horizon& horizon);
  void NoteChange(int tensor, int memory);
  void KeepCopies(size_t made_begin, size_t made_end);
  void KeepSuffixes();

  const model::Problem& problem_;
  const decompose::Module& module_;
  const Arrangement& arrangement_;
  int spacing_;        // tasks between checkpoints
  bool may_converge_;  // worth looking for
  const Horizon* horizon_ = nullptr;
  // Kept results, overwritten by Try and put right again by Reject.
  std::vector<int64_t> finish_ns_;  // [num_tasks]
  PairTable<Arrival> arrivals_;
  // Kept.
  std::vector<Checkpoint> checkpoints_;    // every spacing_ positions
  std::vector<MadeCopy> made_;             // copies in order of making
  std::vector<int64_t> suffix_makespan_;   // [num_checkpoints], of the tasks from there on
  std::vector<int64_t> suffix_ready_;      // [num_checkpoints], earliest of copies from there on
  std::vector<int64_t> segment_makespan_;  // [num_checkpoints], of the tasks up to the next one
  int64_t makespan_ns_ = 0;
  int64_t num_unreachable_ = 0;
  // The replay under way.
  std::vector<int64_t> unit_free_ns_;                  // [num_units]
  std::vector<int64_t> load_ns_;                       // [num_units], of the tasks so far
  std::vector<list::BoundedReservationTable> tables_;  // [num_resources - num_units]
  std::vector<Checkpoint> trial_checkpoints_;
  std::vector<int64_t> trial_segments_;
  std::vector<MadeCopy> trial_made_;
  std::vector<model::ScheduledCopy>* record_ = nullptr;
  std::vector<std::pair<int, int64_t>> finish_undo_;
  std::vector<std::pair<size_t, Arrival>> arrival_undo_;
  int64_t limit_ns_ = list::kNever;  // of the replay
  int evaluation_ = 0;
  int begin_ = 0;           // position that the replay starts at
  int end_checkpoint_ = 0;  // where it met the kept state again, or the number of checkpoints
  int dirty_until_ = -1;    // last position that reads a changed time
  int64_t trial_makespan_ns_ = 0;
  int64_t trial_segment_ns_ = 0;
  int64_t trial_unreachable_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace heteroplace::search
