#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"
#include "search/module_annealing.h"
#include "search/patterns.h"
#include "search/search.h"
#include "search/selection.h"
#include "support/random.h"

namespace heteroplace {

/*! \brief One run of annealing. */
struct Job {
  int piece_class = 0;
  Layout start;
  PieceGoal goal;
  AnnealOptions options;
  AnnealOutcome outcome;
};

/*! \brief Decides what annealing does next. */
class JobPlanner {
 public:
  JobPlanner(const Problem& problem, const Chain& chain, const Patterns& patterns,
             const Selector& selector, uint64_t seed);

  /*!
   * \brief Independent runs over a graph of one piece: from the best plan and from the starts, or
   * stretch by stretch from the best plan if it is large.
   */
  std::vector<Job> OnePieceJobs(const std::vector<SearchStart>& starts, int best_pattern,
                                int round);
  /*!
   * \brief Jobs for the (class, pair of memories) where a better pattern would pay most: the more
   * pieces, time and nearness to the best path, and the less it was searched so far.
   * \param price [num_memories], ns per byte
   */
  std::vector<Job> ChainJobs(std::span<const double> price, int round);
  /*! \brief Takes the prices that the best of some stretch jobs ended with, for the next round. */
  void UsePrices(const std::vector<Job>& jobs);

 private:
  int64_t LeastLength(int piece_class) const;
  int64_t PairLength(size_t cell, size_t pairs, int round) const;
  std::vector<Job> StretchJobs(const Pattern& best, int round) const;
  Job MakeJob(int piece_class, const Layout& start, int64_t length, int round, int index) const;
  double Spent(size_t cell, size_t pairs, int round) const;
  void AddPairJob(std::vector<Job>& jobs, size_t cell, std::span<const double> price, int round);

  const Problem& problem_;
  const Chain& chain_;
  const Patterns& patterns_;
  const Selector& selector_;
  uint64_t seed_;
  Random random_;
  std::vector<int64_t> spent_;         // [num_classes][num_memories^2], evaluations of jobs
  std::vector<double> stretch_price_;  // [num_memories], ns per byte; empty before the first round
  int64_t steps_ = 0;                  // tasks times evaluations of all jobs
  std::vector<int> num_pieces_;        // [num_classes]
};

}  // namespace heteroplace
