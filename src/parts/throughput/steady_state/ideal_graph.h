#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/problem.h"

namespace heteroplace::throughput {

/*! \brief A set of nodes. */
using NodeSet = std::vector<uint64_t>;

/*! \brief Whether a node is in a set. */
inline bool Has(const NodeSet& set, int node) {
  return (set[static_cast<size_t>(node) / 64] >> (node % 64) & 1) != 0;
}

/*!
 * \brief The tasks of a problem as nodes, what they pass to each other, and the ideals: the sets of
 * nodes that hold all their predecessors.
 *
 * Tasks of a group, with what lies between them, are one node. Where that would be most of the
 * graph (forward and backward tasks together), groups alone are, and edges against the order of
 * their first tasks are left out.
 */
struct IdealGraph {
  /*! \brief A tensor that some other node reads. */
  struct Passed {
    int tensor;
    int producer;              // node
    std::vector<int> readers;  // nodes, each once
  };

  std::vector<std::vector<int>> tasks;       // [num_nodes]
  std::vector<int> node_of;                  // [num_tasks]
  std::vector<std::vector<int>> before;      // [num_nodes], predecessors
  std::vector<Passed> passed;                // by tensor
  std::vector<std::vector<int>> touched_by;  // [num_nodes], of `passed`: made or read there
  // Filled by FindIdeals: smaller ones first, the last one has all nodes.
  std::vector<NodeSet> ideals;
  std::vector<std::vector<std::pair<int, int>>> grown;  // [num_ideals], (node, ideal with it)

  explicit IdealGraph(const model::Problem& problem);

  /*! \brief Finds all ideals; false: there are more than `most`. */
  bool FindIdeals(int most);
  /*! \brief Whether a tensor is made in an ideal and read outside, or the other way round. */
  bool Passes(int passed, int ideal) const;

 private:
  void FindNodes(const model::Problem& problem);
  void FindPassed(const model::Problem& problem);
};

}  // namespace heteroplace::throughput
