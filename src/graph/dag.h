#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/problem.h"

namespace heteroplace::graph {

/*!
 * \brief A directed graph as lists of successors and predecessors, with an id for each edge.
 *
 * The id of an edge is its position in `successors.values`, so that weights of edges are plain
 * vectors parallel to it. Node ids need not be topological. Nothing here knows tasks: the same
 * functions serve fine and coarse graphs. Immutable after construction.
 */
struct Dag {
  model::Csr successors;      // [num_nodes]
  model::Csr predecessors;    // [num_nodes], ascending
  std::vector<int> incoming;  // [num_edges], edge ids, parallel to predecessors.values

  /*! \brief Derives the predecessors. Throws Error(kGraph) if a successor does not exist. */
  explicit Dag(model::Csr successor_lists);

  int num_nodes() const { return successors.num_rows(); }
  int num_edges() const { return static_cast<int>(successors.values.size()); }
  /*! \brief Ids of the edges that leave a node: [begin, end). */
  int EdgeBegin(int node) const { return successors.offsets[node]; }
  int EdgeEnd(int node) const { return successors.offsets[node + 1]; }
  /*! \brief Ids of the edges that enter a node, parallel to `predecessors[node]`. */
  std::span<const int> IncomingEdges(int node) const {
    const int begin = predecessors.offsets[node];
    return {incoming.data() + begin, static_cast<size_t>(predecessors.offsets[node + 1] - begin)};
  }
};

/*! \brief Nodes of one cycle in the order of its edges; empty: the graph has none. O(n + m). */
std::vector<int> FindCycle(const Dag& dag);

/*!
 * \brief Component of each node: two nodes share one if each reaches the other (Tarjan 1972).
 * [num_nodes], numbered so that edges between components lead to higher numbers. O(n + m).
 */
std::vector<int> StrongComponents(const Dag& dag);

/*! \brief Throws Error(kGraph) naming a cycle. For callers that found that there must be one. */
[[noreturn]] void ThrowCycle(const Dag& dag);

/*!
 * \brief The graph of groups: an edge for each pair of groups that has one, ascending, each once.
 * \param group_of [num_nodes], in 0..num_groups-1; else Error(kGraph).
 */
Dag Quotient(const Dag& dag, std::span<const int> group_of, int num_groups);

}  // namespace heteroplace::graph
