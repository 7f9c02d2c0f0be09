#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/problem.h"

namespace heteroplace::throughput {

/*! \brief One set of variables that are cut if some are in a subset and some are not. */
struct Hyperedge {
  std::vector<int> pins;  // variables, ascending, each once
  int tensor = -1;
};

/*!
 * \brief The tasks of a problem as variables of a subset, and its tensors as hyperedges over them.
 *
 * A variable is a task, or all tasks of a group.
 */
struct Hypergraph {
  int num_variables = 0;
  std::vector<int> variable;  // [num_tasks]
  std::vector<Hyperedge> edges;

  explicit Hypergraph(const model::Problem& problem);
};

/*!
 * \brief All subsets of variables as paths through few states, along an order of the variables.
 *
 * A state says, of each hyperedge with variables on both sides of a place in the order, whether
 * those before are all in the subset or all out of it; once some are and some are not the
 * hyperedge is cut, and no longer part of the state (dynamic programming over a path
 * decomposition; Bodlaender 1988).
 */
struct SubsetOrder {
  /*! \brief A variable goes in or stays out. */
  struct Move {
    int from, to;             // states before and behind
    bool is_in;               // the variable is in the subset
    int first_cut, last_cut;  // positions in `cuts`: hyperedges that are cut here
  };
  struct Step {
    int variable = -1;
    int num_states = 0;  // behind it
    std::vector<Move> moves;
  };

  using State = std::vector<std::pair<int, bool>>;  // (open hyperedge that is not cut, is in)

  std::vector<Step> steps;  // one for each variable
  std::vector<int> cuts;    // positions in Hypergraph::edges
  int64_t num_states = 0;   // of all steps
  bool is_exact = true;     // no hyperedge was left out

  /*!
   * \brief Orders the variables, at each place the one that leaves fewest hyperedges open.
   *
   * \param max_states Of all steps together, about. Where a step has more than its share,
   *   hyperedges are left out from there on, as if they were not cut.
   */
  SubsetOrder(const Hypergraph& graph, int64_t max_states);

 private:
  /*! \brief The state behind a place; adds what is cut there to `cuts`. */
  State Behind(const State& before, const std::vector<int>& mine,
               const std::vector<std::pair<int, int>>& extents, int place, bool is_in);
};

}  // namespace heteroplace::throughput
