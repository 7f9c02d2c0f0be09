#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"
#include "parts/throughput/steady_state/subset_order.h"

namespace heteroplace::throughput {

/*! \brief Loads are counted in whole buckets; what is left over is priced. */
struct Buckets {
  int64_t width_ns = 1;
  int count = 1;            // loads up to count x width_ns
  double price_per_ns = 0;  // >= 0, of the rest of each load below a bucket, and of spare time
};

/*! \brief The most profit of any subset within each load. */
struct SubsetProfits {
  std::vector<double> most;        // [count + 1], within b x width_ns; rises with b
  std::vector<int64_t> is_chosen;  // [num_variables], 0 or 1, the subset of most[at]
};

/*!
 * \brief What one device can hold within a load: a knapsack over subsets of the tasks.
 *
 * The load of a device is what it is busy with: the run times of its tasks and, where copies occupy
 * the device and its memory is its own, one copy of each tensor that some tasks of the subset and
 * some others make or read. Nothing is taken from what the other devices do, so a placement splits
 * the tasks into such subsets, one for each device.
 */
class SubsetKnapsack {
 public:
  /*! \param max_states See SubsetOrder. */
  SubsetKnapsack(const model::Problem& problem, int64_t max_states);

  const Hypergraph& graph() const { return graph_; }
  const SubsetOrder& order() const { return order_; }
  /*! \brief [num_devices]: equal for devices with equal times for everything. */
  const std::vector<int>& device_class() const { return device_class_; }
  /*! \brief Whether some copies count as load of some device. */
  bool has_copies() const { return has_copies_; }
  /*! \brief [num_variables], run time on a device of a class; kImpossible: not allowed. */
  const std::vector<int64_t>& run_ns(int device_class) const { return run_ns_[device_class]; }

  /*!
   * \brief The most profit of a subset, for each load. Not thread-safe.
   *
   * Loads are rounded down, and the rest is taken off the profit at `price_per_ns`; what a load
   * leaves of the limit is given back at the same price. Both only raise the profit of subsets
   * within the limit, so that the values are upper bounds.
   * \param profit [num_variables].
   * \param at A number of buckets, whose subset is asked for.
   */
  SubsetProfits Evaluate(int device_class, const std::vector<double>& profit,
                         const Buckets& buckets, int at);

 private:
  /*! \brief What a move does to a subset. */
  struct Change {
    int64_t buckets;
    double profit;
  };

  void AddClasses(const model::Problem& problem);
  Change ChangeOf(int device_class, const std::vector<double>& profit, const Buckets& buckets,
                  const SubsetOrder::Step& step, const SubsetOrder::Move& move) const;
  std::vector<int64_t> Chosen(int device_class, const std::vector<double>& profit,
                              const Buckets& buckets, int at) const;

  Hypergraph graph_;
  SubsetOrder order_;
  std::vector<int> device_class_;
  std::vector<std::vector<int64_t>> run_ns_;   // [classes][num_variables]
  std::vector<std::vector<int64_t>> copy_ns_;  // [classes][edges]
  bool has_copies_ = false;
  // [steps + 1][states x (count + 1)]: most profit at exactly so many buckets.
  std::vector<std::vector<double>> layers_;
};

}  // namespace heteroplace::throughput
