#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/problem.h"
#include "sched/schedule.h"

namespace heteroplace {

/*! \brief A placement and an order to begin from. */
struct SearchStart {
  std::vector<int> device;  // [num_tasks], allowed devices, one per group
  std::vector<int> order;   // [num_tasks], a topological order
};

/*! \brief Budgets of a search; the first to be used up ends it. */
struct SearchOptions {
  int64_t max_evaluations = -1;  // -1: no limit
  double time_limit_s = 10.0;
  uint64_t seed = 0;
  int64_t bound_ns = 0;  // a makespan that cannot be beaten: the search ends there
  int64_t patience = 0;  // ends after so many evaluations without gain; 0: never
};

/*! \brief Called now and then with (evaluations, best makespan); true ends the search. */
using SearchHook = std::function<bool(int64_t, int64_t)>;

/*! \brief What a search found. */
struct SearchOutcome {
  Schedule schedule;  // the best one
  int64_t evaluations = 0;
  bool was_stopped = false;  // by the hook
};

/*!
 * \brief Improves plans by simulated annealing over (placement, order).
 *
 * Moves: a task to another device, a chain of tasks to one device, a window of the order to random
 * devices, two tasks' devices exchanged, a task shifted in the order. Annealing runs in rounds:
 * first from each start, then mostly from the best so far, longer each time. Without a memory-
 * feasible start the violation is reduced first. The same seed and number of evaluations give the
 * same result, unless the time limit ends the search.
 *
 * \param starts At least one.
 */
SearchOutcome Search(const Problem& problem, const std::vector<SearchStart>& starts,
                     const SearchOptions& options, const SearchHook& hook);

/*!
 * \brief Makespan of the placement with each one task (with its group) moved to each device.
 * \return [num_tasks][num_devices]; kImpossible where the task may not run or memory overflows.
 */
std::vector<int64_t> WhatIf(const Problem& problem, const SearchStart& plan);

}  // namespace heteroplace
