#pragma once

#include <vector>

#include "graph/dag.h"

namespace heteroplace::throughput {

/*!
 * \brief Component of each node: two nodes share one if no cut of fewer than `k` edges parts them,
 * the edges taken as undirected. [num_nodes], numbered by the lowest node inside.
 *
 * By the scheme of Gusfield (1990, DOI 10.1137/0219009) with flows that stop at k: one flow for
 * each node that has at least k edges, so O(k n m) at worst. Throws Error(kGraph) if `k` is less
 * than 1.
 */
std::vector<int> EdgeConnectedComponents(const graph::Dag& dag, int k);

}  // namespace heteroplace::throughput
