#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "bounds/module_trees.h"

namespace heteroplace::bounds {

class HeadTailBound;

/*!
 * \brief Lower bounds on the time of a module plus the price of its memory, for every device of the
 * cut before it and of the cut that ends it.
 *
 * Each unit that is used is idle until something can reach it and after the last result must leave
 * it, so T >= release + busy + tail; each copy resource, and each unit that copies occupy too, has
 * T >= busy. Any convex combination of
 * these is a bound, whose least value over placements ModuleTrees::Solve finds; the combination is
 * improved by subgradients. As a unit that is not used has no release, the sets of used devices are
 * tried one by one (up to 4 devices), with the memories that what the cut made is copied to. What
 * reads it there can only run after that copy: a second release, for those tasks alone.
 *
 * Before the first of those copies can have arrived, at a time e, other memories have only what
 * comes from the cut's own memory, over the links of these copies, and later tensors only after it.
 * So time has two phases: what a resource does in the early one takes at most e of it, and
 * T >= e + its use in the late one. Nothing is early behind what is late (ModuleTrees).
 * Not thread-safe.
 */
class ModuleBound {
 public:
  using Clock = std::chrono::steady_clock;

  /*! \param keeps_samples Whether Sample is called later; what it needs takes time. */
  ModuleBound(const model::Problem& problem, const decompose::Module& module, bool keeps_samples);

  /*!
   * \brief Improves and returns the bound for devices `entry` and `exit` (-1: there is no cut).
   *
   * It covers the time from the finish of the one cut to the finish of the other one, and the
   * memory of all tasks of the module. kNever if impossible.
   * \param price [num_memories], ns per byte  \param iterations Of the subgradient.
   */
  double Bound(int entry, int exit, std::span<const double> price, int iterations);

  /*!
   * \brief Limits what further calls of Bound do: behind it bounds stay as they are.
   * \param work How often tasks are looked at; what is left from before is added.
   */
  void Limit(int64_t work, Clock::time_point deadline) {
    // Without a limit both are so large that their sum would overflow.
    const int64_t most = std::numeric_limits<int64_t>::max() - work;
    work_ = is_limited_ ? std::min(work_, most) + work : work;
    is_limited_ = true;
    deadline_ = deadline;
  }

  /*!
   * \brief Adds the mean memory use of the placements that the latest Bound for the pair met.
   * \param total [num_memories], bytes
   */
  void AddUsed(int entry, int exit, std::vector<double>& total) const;

  /*!
   * \brief A placement of the module that is close to what the latest Bound for the pair met on
   * average: each tree of tasks takes the devices of one of those placements.
   * \param turn In [0, 1), which ones.  \param device [num_tasks of the module]
   */
  void Sample(int entry, int exit, double turn, std::span<int> device) const;

  /*! \brief A bound that no plan reaches: the pair of devices is impossible. */
  static constexpr double kImpossibleBound = 1e300;

 private:
  static constexpr double kFar = 1e300;  // a time of what never is

  /*! \brief A placement that the subgradient met, with its weight in the mean. */
  struct Met {
    double weight;
    std::vector<uint8_t> solution;  // as ModuleTrees::solution
  };
  /*! \brief A set of devices that may be used, and how to weigh resources against each other. */
  struct Case {
    Scope scope;
    std::vector<double> idle_ns;   // as Prices::resource: release and tail; -room of early use
    double path_ns = 0;            // the critical path
    std::vector<double> resource;  // the best prices so far
    double early_ns = 0;           // length of the early phase; 0: there is one phase
  };
  /*! \brief When to leave a case: what is used up or reached first. */
  struct Effort {
    int iterations;
    double enough;  // another case is not above it
  };
  /*! \brief What the exit takes beside the inner tasks. */
  struct Own {
    bool is_possible = true;
    double ns = 0;            // if there are no inner tasks
    double copied_bytes = 0;  // copies that no inner task is charged for
    double kept_bytes = 0;    // weights, and what it makes
  };
  struct Pair {
    bool is_ready = false;
    std::vector<Case> cases;
    std::vector<double> used;  // [num_memories]; empty: nothing was looked at
    size_t latest = 0;         // case that decided the latest bound
    std::vector<Met> met;      // placements of that case
  };

  const Pair& At(int entry, int exit) const {
    return pairs_[static_cast<size_t>(entry + 1) * (module_.num_devices + 1) +
                  static_cast<size_t>(exit + 1)];
  }
  Pair& At(int entry, int exit) { return const_cast<Pair&>(std::as_const(*this).At(entry, exit)); }
  void Prepare(int entry, int exit, Pair& pair);
  bool AddCase(int entry, int exit, const Scope& scope, bool is_exact, Pair& pair);
  bool AddLate(int entry, const HeadTailBound& head_tail, Case& one) const;
  double EarlyPhase(int entry, const HeadTailBound& head_tail, const Case& one) const;
  void AddPhases(const HeadTailBound& head_tail, std::span<const double> release,
                 std::span<const double> tail, bool is_exact, Case& one) const;
  bool AddCutCopy(int home, int memory, const Case& one, const Prices& prices, double& value);
  double Direction(const Case& one, std::span<const double> resource,
                   std::vector<double>& mean_slope);
  Own OwnOf(int entry, int exit) const;
  double OwnCost(const Own& own, int exit, std::span<const double> price) const;
  double Maximise(int entry, int exit, Case& one, std::span<const double> price,
                  const Effort& effort, std::vector<double>& used, std::vector<Met>& met);
  double Evaluate(int entry, int exit, const Case& one, const Prices& prices);
  bool IsOver() const { return work_ <= 0 || Clock::now() >= deadline_; }
  double LeastMemory(const Scope& scope, std::span<const double> price) const;

  const model::Problem& problem_;
  const decompose::Module& module_;
  ModuleTrees trees_;
  bool is_enumerable_;  // few enough devices to try all sets
  bool keeps_samples_;
  std::vector<int> cut_tensors_;  // made by the cut before the module
  std::vector<bool> is_copying_;  // [num_resources], copies occupy it
  std::vector<Pair> pairs_;       // [entry + 1][exit + 1]; empty: none was asked for yet
  bool is_limited_ = false;
  int64_t work_ = std::numeric_limits<int64_t>::max();
  Clock::time_point deadline_ = Clock::time_point::max();
  Usage use_;                  // of the latest Evaluate
  std::vector<double> slope_;  // as Prices::resource, of the latest Evaluate
};

}  // namespace heteroplace::bounds
