#pragma once

#include <cstdint>
#include <vector>

#include "parts/throughput/steady_state/elimination.h"

namespace heteroplace::throughput {

/*! \brief What Evaluate found. */
struct RelaxedValue {
  double value = 0;            // least priced cost over all placements, or a bit less
  std::vector<double> totals;  // [resources + memories], busy ns and bytes of a minimiser
};

/*!
 * \brief The least priced cost of any placement, by eliminating one variable after the other.
 *
 * For prices y >= 0 of resources (with sum 1) and of bytes, value(y) - sum of price x capacity is
 * a lower bound on the time per item of every placement that fits (Lagrangian relaxation). The
 * minimum over all placements is found exactly by nonserial dynamic programming (Bertele and
 * Brioschi 1972), least table first, where tables stay below a limit; a variable beyond it is split
 * into copies that may differ (mini-buckets, Dechter and Rish 2003), which only lowers the value.
 *
 * Equal eliminations, such as those inside equal layers, are computed once: the work for one
 * vector of prices depends on what differs in the graph, not on its size.
 *
 * Numbers are double: all terms are >= 0, so the relative error is below (number of terms) * 2^-52.
 */
class Relaxation {
 public:
  /*! \param max_work Table entries read by one evaluation, at most about so many. */
  Relaxation(const model::Problem& problem, int64_t max_work);

  /*! \brief Least priced cost; infinite if no placement is possible. Not thread-safe. */
  RelaxedValue Evaluate(const Prices& prices);
  /*! \brief Device of each task in the minimiser of the latest evaluation; with split variables,
   * that of a copy. */
  std::vector<int> Placement() const;
  /*! \brief Whether no variable was split: values are exact minima. */
  bool is_exact() const { return plan_.is_exact; }
  /*! \brief Resources and memories. */
  size_t num_prices() const { return num_prices_; }
  /*! \brief Distinct eliminations. */
  int num_eliminations() const { return static_cast<int>(plan_.eliminations.size()); }

 private:
  /*! \brief Entries of the base tables for prices. */
  void FillBase(const Prices& prices);
  /*! \brief Result and choices of one elimination. */
  void Eliminate(size_t index);
  /*! \brief Adds up what the minimiser uses, from the last elimination to the first. */
  void CountTotals(std::vector<double>& totals);

  /*! \brief Kept between eliminations, of which there are many small ones. */
  struct Scratch {
    std::vector<int> at;             // values of the others
    std::vector<const double*> row;  // [inputs], where their values lie
    std::vector<double> sums;        // for each value of the variable
  };

  FactorGraph graph_;
  size_t num_prices_;
  EliminationPlan plan_;
  Scratch scratch_;
  std::vector<std::vector<double>> values_;    // [tables], base tables first
  std::vector<std::vector<double>> counts_;    // as values_: how often an entry is used
  std::vector<std::vector<uint16_t>> choice_;  // [eliminations][size], least value of the variable
};

}  // namespace heteroplace::throughput
