#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/problem.h"

namespace heteroplace::throughput {

/*! \brief Budgets of the local search; the first to be used up ends it. */
struct ImproveOptions {
  int64_t max_moves = -1;  // -1: no limit
  double time_limit_s = 10.0;
  uint64_t seed = 0;
  int threads = 2;
  int64_t bound_ns = 0;  // a time per item that cannot be beaten: the search ends there
};

/*! \brief Called now and then with (moves, best time per item); true ends the search. */
using ImproveHook = std::function<bool(int64_t, int64_t)>;

/*! \brief What the search found. */
struct ImproveOutcome {
  std::vector<int> device;  // [num_tasks], the best placement
  int64_t item_ns = 0;      // its time per item
  int64_t violation = 0;    // bytes over capacity, plus copies without a route
  int64_t moves = 0;
  bool was_stopped = false;  // by the hook
};

/*!
 * \brief Improves placements for throughput by annealing on a smooth form of the largest load.
 *
 * Energy: sum over resources of (busy / best)^p, p growing during the search, plus a price for
 * bytes over capacity. A move is tried by changing all loads in O(tensors x memories) per task,
 * and taken back if refused. Moves: a task; tasks that hang together; a segment of the order of
 * tasks; a segment that takes the devices which another placement of `patterns` gives it, or which
 * equal tasks elsewhere have; an exchange of two tasks.
 *
 * Two annealers work in rounds, on two threads if there are; the number of threads never changes
 * the result of a budget in moves.
 *
 * \param initial At least one. Each holds devices that the tasks may use, one per group.
 * \param patterns Other placements, with devices of the same kind; may be empty.
 */
ImproveOutcome Improve(const model::Problem& problem, const std::vector<std::vector<int>>& initial,
                       const std::vector<std::vector<int>>& patterns, const ImproveOptions& options,
                       const ImproveHook& hook);

/*!
 * \brief Contiguous splits of the order of tasks over the devices, one per order of devices.
 *
 * For an order of devices, tasks go to the first device until a unit's run time would exceed a
 * limit or its memory is full, then to the next; the least limit for which all tasks find a place
 * is found by bisection. Transfers are not counted. Best first by (violation, time per item).
 *
 * \param max_orders Orders of devices to try; all, if there are not more.
 */
std::vector<std::vector<int>> ContiguousSplits(const model::Problem& problem, int max_orders);

}  // namespace heteroplace::throughput
