#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::throughput {

/*! \brief Lagrange multipliers: a price per resource, then one per memory (per byte). */
using Prices = std::vector<double>;

/*! \brief What one entry of a table costs: amounts of priced things. */
struct Amounts {
  bool is_possible = true;
  std::vector<std::pair<int, double>> list;  // (position in Prices, amount)
};

/*! \brief A cost that depends on a few variables; equal ones are kept once. */
struct BaseTable {
  std::vector<Amounts> entries;  // row-major over the scope, last variable fastest
};

/*! \brief One use of a table. */
struct Factor {
  int table = -1;          // a base table, or the result of an elimination
  double scale = 1.0;      // in (0, 1]
  std::vector<int> scope;  // distinct variables, in the order of the table
  bool is_shared = false;  // copies of a split variable share it, rather than one having it
};

/*!
 * \brief The priced placement problem as a sum of small tables over variables.
 *
 * A variable is the device of a task (of a group), or the set of memories that hold a tensor with
 * several readers: then each copy is counted once, whoever reads it. Tables of tensors with one
 * reader depend on the two devices. Variables are numbered along the order of the tasks, so that
 * equal parts of the graph have equal tables over variables in equal order.
 */
struct FactorGraph {
  std::vector<int> domain;         // [num_variables], number of values
  std::vector<int> task_variable;  // [num_tasks]
  std::vector<BaseTable> tables;   // distinct
  std::vector<Factor> factors;

  /*! \brief Throws Error (kSolverLimit) where the tables would take gigabytes. */
  explicit FactorGraph(const model::Problem& problem);

 private:
  /*! \brief Memories up to which sets of them are variables; with more, readers share the price. */
  static constexpr int kMaxMemories = 7;
  /*! \brief Runs and copies that all tables describe, some 100 bytes each. */
  static constexpr int64_t kMaxSteps = 5'000'000;

  void AddVariables();
  void AddTasks();
  void AddTensors();
  void AddShared(int tensor, int maker, const std::vector<int>& readers);
  void AddStar(int tensor, int maker, const std::vector<int>& readers);
  Amounts CopyAmounts(int tensor, int src, int dst) const;
  int64_t BytesIn(int tensor, int memory) const;
  /*! \brief The table with this key, made by `fill` if it is new; it describes so many steps. */
  template <typename Fill>
  int TableFor(const std::vector<int64_t>& key, int64_t num_steps, Fill fill);

  const model::Problem& problem_;
  std::vector<int> set_variable_;          // [num_tensors], -1: none
  std::vector<std::vector<int>> readers_;  // [num_tensors], variables but the maker's, each once
  std::map<std::vector<int64_t>, int> known_;
  int64_t num_steps_ = 0;     // of all tables
  bool is_counting_ = false;  // tables are not filled
};

}  // namespace heteroplace::throughput
