#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::search {

/*! \brief A placement and an order to begin from. */
struct InitialSolution {
  std::vector<int> device;  // [num_tasks], allowed devices, one per group
  std::vector<int> order;   // [num_tasks], a topological order; empty: by list scheduling
};

/*! \brief What holds for all turns of a search. */
struct SearchOptions {
  int64_t max_evaluations = -1;  // -1: no limit
  uint64_t seed = 0;
  int64_t patience = 0;  // ends after so many evaluations without gain; 0: never
  int threads = 1;
  // Lagrange multipliers of the memories, [num_memories], ns per byte, to begin with; empty: zeros.
  std::vector<double> price;
  bool finds_bound = true;  // look for better bounds, and for placements that come with them
};

/*! \brief Budgets of one turn; the first to be used up ends it. */
struct SearchTurn {
  double time_limit_s = 10.0;
  int64_t bound_ns = 0;  // a proven bound; the search ends where the best makespan meets one
  // The turn ends, behind a round of it, after this part of all turns so far without a gain, if
  // that is `stall_s` at least; 0: never.
  double stall_share = 0;
  double stall_s = 0;
};

/*! \brief Called now and then with (evaluations, best makespan, bound); true ends the search. */
using SearchHook = std::function<bool(int64_t, int64_t, int64_t)>;

/*! \brief What a search found. */
struct SearchOutcome {
  model::NativePlan plan;  // the best one
  int64_t evaluations = 0;
  bool was_stopped = false;   // by the hook
  std::vector<double> price;  // [num_memories], ns per byte: what memory is worth in the best plan
  int64_t bound_ns = 0;       // the best bound known
  bool can_go_on = false;     // only the turn has ended: its time is up, or it stalled
  double stalled_s = 0;       // of all turns, since the last gain
};

/*!
 * \brief Improves plans: column generation over the modules of the graph, with annealing as
 * pricing.
 *
 * The graph is cut into modules (see Modules); equal modules share their patterns. In each round
 * prices of memory are found for the known patterns, a pattern is selected for each module (see
 * Selector), and annealing looks for patterns that would pay at those prices (see Anneal), several
 * at once on `threads` threads. A graph without cuts is one module: rounds of annealing within the
 * memories, from the initial solutions and from the best plans so far. The result is never worse
 * than the best of them. The same seed and number of evaluations give the same result whatever the
 * number of threads, unless the time limit or the hook ends the search.
 *
 * It may be done in several turns. One that stalled goes on as if nothing had been between, unless
 * it is given plans.
 */
class PlanSearch {
 public:
  /*!
   * \param problem Outlives the search.
   * \param initial At least one. Those that lack memory or tear groups still give patterns.
   */
  PlanSearch(const model::Problem& problem, std::vector<InitialSolution> initial,
             SearchOptions options);
  ~PlanSearch();

  /*!
   * \brief Searches on.
   * \param plans Found elsewhere since the turn before.
   */
  SearchOutcome Run(const SearchTurn& turn, const std::vector<InitialSolution>& plans,
                    const SearchHook& hook);

 private:
  class ColumnGeneration;
  std::unique_ptr<ColumnGeneration> generation_;
};

}  // namespace heteroplace::search
