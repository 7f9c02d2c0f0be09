#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/dag.h"

namespace heteroplace::graph {

/*! \brief What may share a segment. */
struct SegmentRules {
  int max_nodes = 1;               // R of Celeritas
  int64_t max_bytes = 0;           // Mc; a node larger than that is a segment of its own
  std::span<const int64_t> bytes;  // [num_nodes], >= 0
  std::span<const int> label;      // [num_nodes]; two different labels >= 0 never share a segment
  std::span<const uint64_t> devices;  // [num_nodes][words], bit sets; a segment needs a common bit
};

/*! \brief A topological order cut into segments. */
struct Segments {
  std::vector<int> starts;  // ascending positions; the first is 0 unless there is no node
  int64_t cut_ns = 0;       // weight of the edges between segments
};

/*!
 * \brief Cuts `order` into segments so that the weight of the edges between segments is least.
 *
 * Celeritas, equations 4 to 6 (Kernighan's optimal sequential partition). Ties: the earlier
 * preceding breakpoint, so fewer and larger segments. O(m + R n). Throws Error(kGraph) if sizes
 * disagree or if `order` is not a topological order of `dag`.
 */
Segments CutIntoSegments(const Dag& dag, std::span<const int> order,
                         std::span<const int64_t> edge_ns, const SegmentRules& rules);

/*! \brief Position of each node in `order`; throws Error(kGraph) unless it is topological. */
std::vector<int> Positions(const Dag& dag, std::span<const int> order);

}  // namespace heteroplace::graph
