#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "parts/throughput/steady_state/renewed_sum.h"
#include "simulate/loads.h"
#include "support/random.h"

namespace heteroplace::throughput {

/*! \brief What all annealers of one search read. */
struct AnnealingData {
  const model::Problem& problem;
  const std::vector<std::vector<int>>& patterns;
  std::vector<int> kind;                     // [num_tasks], equal for equal tasks
  std::vector<std::vector<int>> kind_tasks;  // [kinds], ascending

  AnnealingData(const model::Problem& problem, const std::vector<std::vector<int>>& patterns);
};

/*! \brief One walk of the annealing. Not thread-safe; annealers of one search share only
 * AnnealingData. */
class Annealer {
 public:
  Annealer(const AnnealingData& data, std::vector<int> device, uint64_t seed);

  /*! \brief Sets the exponent to 2^squarings, and how readily worse energies are accepted. */
  void SetPhase(int squarings, double temperature);
  /*! \brief Tries so many moves. */
  void Try(int64_t moves);
  /*! \brief Goes to another placement. */
  void Restart(const std::vector<int>& device);
  /*! \brief Time per item, raised for what does not fit: least for the best initial solution. */
  double Promise() const;
  /*! \brief The best placement so far. */
  const std::vector<int>& best() const { return best_; }
  int64_t best_ns() const { return best_ns_; }
  /*! \brief Bytes over capacity plus copies without a route, of the best. */
  int64_t best_violation() const { return best_violation_; }

 private:
  /*! \brief What a resource, a memory, and copies without a route add to the energy. */
  double ResourceEnergy(int resource) const;
  double MemoryEnergy(int memory) const;
  double UnreachableEnergy() const;
  /*! \brief The energy of the current placement. */
  double Energy();
  /*! \brief The same behind moves: where there are many resources, of what these have changed. */
  double MovedEnergy();
  int64_t Violation() const { return loads_.Overflow() + loads_.num_unreachable(); }
  /*! \brief Keeps the current placement if it is the best. */
  void Note();
  /*! \brief A task on a device of the busiest unit, if a few tries find one. */
  int BusyTask();
  /*! \brief A length in [1, limit], every order of magnitude as likely. */
  int Length(int limit);
  /*! \brief Moves a task, with its group, if it may run there; notes it for Undo. */
  void Put(int task, int device);
  void Undo();

  /*! \brief Makes one move of a random kind. */
  void MakeMove();
  void MoveTask();
  void MoveRegion();
  void MoveSegment();
  void CopyPattern();
  void CopyElsewhere();
  void Exchange();

  const AnnealingData& data_;
  const model::Problem& problem_;
  Random random_;
  simulate::Loads loads_;
  double scale_ = 1.0;  // 1 / best time per item
  int squarings_ = 4;
  double temperature_ = 0;
  double energy_ = 0;                       // of the placement before the moves that are tried
  const bool is_wide_;                      // what moves change is noted
  RenewedSum parts_;                        // of the energy: [num_resources], [num_memories]
  std::vector<std::pair<int, int>> moved_;  // (task, device before), in order
  std::vector<int> region_;                 // scratch of MoveRegion
  std::vector<int> best_;
  int64_t best_ns_ = 0;
  int64_t best_violation_ = 0;
};

}  // namespace heteroplace::throughput
