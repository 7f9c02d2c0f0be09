#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::bounds {

/*! \brief Budgets of a bound; the first to be used up ends it. */
struct BoundOptions {
  int rounds = 12;       // of the ascent of memory prices (Lagrange multipliers)
  int iterations = 120;  // of the subgradient for each pair of devices of a module
  double time_limit_s = 10.0;
  // How often tasks are looked at, over all rounds; 0: no limit. Distinct modules share it by their
  // tasks. Unlike the time it gives the same bound on every machine.
  int64_t max_work = 0;
  int64_t target_ns = 0;  // a known makespan: the bound cannot exceed it
  int threads = 1;
  int num_samples = 0;  // placements to return
  // One evaluation at the given prices. The bound may then be negative, as one term of several that
  // share a memory.
  bool has_fixed_prices = false;
};

/*! \brief A proven bound, and the memory prices that it was found at. */
struct BoundOutcome {
  int64_t bound_ns = 0;
  std::vector<double> price;  // [num_memories], ns per byte
  int rounds = 0;
  // [num_samples + num_devices or less][num_tasks], devices: what the bound's relaxed plans look
  // like; the last ones with all cuts on one device. They may lack memory and tear groups.
  std::vector<std::vector<int>> samples;
};

/*!
 * \brief Lower bound on the makespan of every plan under the full model, with memory prices.
 *
 * The graph is a modules of modules between tasks that all others come before or after; whatever a
 * plan does, its makespan is at least the sum of the times from cut to cut. With a price for each
 * byte of each memory, the cheapest modules of devices for the cuts is a shortest path over bounds
 * on time plus memory of each module (ModuleBound), and that path less the price of all room is a
 * bound, for every choice of prices >= 0 (Lagrangian relaxation of the memory limits). Equal
 * modules are bounded once. 0 where nothing is proven: no plan exists, the time is too short, or
 * there are more than 32 devices or memories, or too many pairs of devices for distinct modules.
 *
 * \param price Prices to begin with; empty: zeros.  \param stop Asked now and then; true ends it.
 */
BoundOutcome LagrangianBound(const model::Problem& problem, std::vector<double> price,
                             const BoundOptions& options, const std::function<bool()>& stop);

}  // namespace heteroplace::bounds
