#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"
#include "search/moves/module_annealing.h"
#include "search/moves/patterns.h"
#include "search/moves/selection.h"
#include "search/moves/withholding.h"
#include "search/search.h"
#include "support/random.h"

namespace heteroplace::search {

/*! \brief One run of annealing. */
struct Job {
  int module_class = 0;
  Layout start;
  ModuleGoal goal;
  AnnealOptions options;
  Withheld withheld;      // what the start does without already
  double known_cost = 0;  // then: of the pattern that it is to improve on, in ns
  AnnealOutcome outcome;
};

/*! \brief Decides what annealing does next. */
class JobPlanner {
 public:
  JobPlanner(const model::Problem& problem, const decompose::Modules& modules,
             const Patterns& patterns, const Selector& selector, uint64_t seed);

  /*!
   * \brief Independent runs over a graph of one module: from the best plan and from the initial
   * solutions, or segment by segment from the best plan if it is large.
   */
  std::vector<Job> OneModuleJobs(const std::vector<InitialSolution>& initial, int best_pattern,
                                 int round);
  /*!
   * \brief Jobs for the (class, pair of memories) where a better pattern would pay most: the more
   * modules, time and nearness to the best path, and the less it was searched so far. One more does
   * without some of the long copies of a best pattern, if there are any.
   * \param price [num_memories], ns per byte
   */
  std::vector<Job> PatternJobs(std::span<const double> price, int round);
  /*!
   * \brief Learns from the jobs of a round: the prices that the best of segment jobs ended with,
   * and whether it pays to withhold copies.
   */
  void UseOutcomes(const std::vector<Job>& jobs);

 private:
  /*! \brief What jobs are counted by. */
  struct Between {
    int module_class;
    int entry;  // memories
    int exit;
  };
  Between BetweenOf(size_t cell) const;
  int64_t LeastLength(int module_class) const;
  int64_t PairLength(size_t cell, size_t pairs, int round) const;
  bool IsScarce(const Pattern& best) const;
  std::vector<Job> SegmentJobs(const Pattern& best, int round) const;
  Job MakeJob(int module_class, const Layout& start, int64_t length, int round, int index) const;
  double Spent(size_t cell, size_t pairs, int round) const;
  void AddPairJob(std::vector<Job>& jobs, size_t cell, std::span<const double> price, int round);
  Job PairJob(const Between& between, const Layout& start, std::span<const double> price,
              int64_t length, int round, int index) const;
  void AddWithholdingJob(std::vector<Job>& jobs, std::span<const std::pair<double, size_t>> useful,
                         std::span<const double> price, int round);

  const model::Problem& problem_;
  const decompose::Modules& modules_;
  const Patterns& patterns_;
  const Selector& selector_;
  uint64_t seed_;
  Random random_;
  std::vector<int64_t> spent_;  // [num_classes][num_memories^2], evaluations of jobs
  std::map<std::pair<size_t, Withheld>, int64_t>
      withheld_;              // by cell, evaluations of the longest job
  double withholding_share_;  // what a job that withholds takes, as a part of the others' work
  std::vector<double> segment_price_;  // [num_memories], ns per byte; empty before the first round
  int64_t steps_ = 0;                  // tasks times evaluations of all jobs
  std::vector<int> num_modules_;       // [num_classes]
};

/*! \brief Where the jobs of a round ask for more evaluations than are left, gives them equal parts.
 */
void ShareEvaluations(int64_t left, std::vector<Job>& jobs);

}  // namespace heteroplace::search
