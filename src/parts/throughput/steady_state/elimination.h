#pragma once

#include <cstdint>
#include <vector>

#include "parts/throughput/steady_state/factors.h"

namespace heteroplace::throughput {

/*! \brief Elimination of one variable: sum its tables, take the least over its values. */
struct Elimination {
  /*! \brief A table to add. */
  struct Input {
    int table;                 // below the number of base tables: base; else an elimination's
    double scale;              // in (0, 1]
    std::vector<int> strides;  // [others..., variable], in the table
  };
  std::vector<int> domain;  // values of the others, then of the variable
  std::vector<Input> inputs;
  int size = 1;             // entries of the result: product over the others
  double multiplicity = 0;  // times that it occurs without others: it is a part of the sum
};

/*! \brief One elimination at its place in the graph. */
struct EliminationInstance {
  int elimination = -1;
  int variable = -1;
  int parent = -1;         // the instance that uses its result; -1: none
  std::vector<int> scope;  // the others, in the order of the tables
};

/*! \brief All variables of a factor graph eliminated, equal steps kept once. */
struct EliminationPlan {
  std::vector<Elimination> eliminations;       // each after those whose results it uses
  std::vector<EliminationInstance> instances;  // each before its parent
  bool is_exact = true;                        // no variable was split
  int64_t work = 0;                            // table entries that the eliminations read

  /*!
   * \brief Plans eliminations, the least table first, ties by number of the variable.
   * \param max_work The limit of a table's size is lowered until `work` is at most so large, as
   *   far as that helps.
   */
  static EliminationPlan Make(const FactorGraph& graph, int64_t max_work);
};

}  // namespace heteroplace::throughput
