#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/dag.h"

namespace heteroplace::throughput {

/*! \brief Which cuts of an order are requested. */
struct PrefixCutRules {
  int max_channels = 1;                 // edges that may cross one cut
  int64_t target_nodes = 1;             // requested size of a module
  int64_t min_nodes = 1;                // least size of a module, unless there is only one
  std::span<const uint8_t> is_allowed;  // [num_nodes]: may there be a cut before this position?
};

/*! \brief An order cut into modules that form a path. */
struct PrefixCuts {
  std::vector<int> starts;  // ascending positions; the first is 0 unless there is no node
  int64_t cost = 0;         // sum of (size - target_nodes)^2
};

/*!
 * \brief Cuts a topological order into modules of sizes as near as possible to the requested one.
 *
 * No edge crosses two cuts, so every edge leads from a module to itself or to the next one: the
 * quotient is a path. The least sum of (size - target)^2 is found by a dynamic programme over the
 * cuts; ties: the earlier preceding cut. O(m + n log n).
 */
PrefixCuts BalancedPrefixCuts(const graph::Dag& dag, std::span<const int> order,
                              const PrefixCutRules& rules);

}  // namespace heteroplace::throughput
