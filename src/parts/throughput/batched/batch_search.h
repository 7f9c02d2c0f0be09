#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/problem.h"
#include "model/steps.h"

namespace heteroplace::throughput {

/*! \brief What moves of the annealing may change about a task. */
enum class BatchPin : uint8_t {
  kFree = 0,
  kSizes = 1,    // each device keeps its number of items
  kDevices = 2,  // each item keeps its device
};

/*! \brief Which items of each task are together, where, and in which order. */
struct BatchLayout {
  std::vector<int> device;  // [num_tasks][num_blocks]
  // [num_tasks][num_devices], least first where several batches are ready; others are not read.
  std::vector<double> key;
  bool is_joint = false;  // items that one batch reads of another are one copy
};

/*! \brief What is looked for, and for how long. */
struct BatchSearchOptions {
  int block = 1;               // items that stay together all the way
  std::vector<BatchPin> pins;  // [num_tasks], or empty: all are free
  int64_t max_evaluations = 0;
  double time_limit_s = 0;
  uint64_t seed = 0;
  double first_heat = 0.01;  // temperature at first, as a part of the first makespan
  int64_t bound_ns = 0;      // a makespan that no layout is below: reached, the search ends
};

/*! \brief The best layout found, and the plan that it is. */
struct BatchSearchResult {
  BatchLayout layout;
  model::Steps steps;  // by start
  int64_t makespan_ns = 0;
  int64_t violation = 0;  // bytes over capacity by the static rule, plus routes that lack
  int64_t num_evaluations = 0;
};

/*! \brief The most blocks that a layout may have: a batch is a word of bits. */
inline constexpr int kMaxBlocks = 64;

/*!
 * \brief Anneals compositions, groups of items and the order of batches of a plan of several items.
 *
 * One batch of a task on each device at most, as in DiviML (section III), and one block of items on
 * one device. Batches are taken in the order of their keys, as their inputs are there; each starts
 * when its units are free. Tasks of a group move together. Throws Error(kInfeasible) if the first
 * layout has a batch of a size that its device does not run, or different batches of one group. The
 * result has the least violation of all that was tried, then the least makespan.
 *
 * \param poll Told now and then how many layouts were tried; true ends the search.
 * Complexity: O(batches * (log batches + reads * batches of a producer)) for each layout.
 */
BatchSearchResult SearchBatches(const model::Problem& problem, int num_items,
                                const BatchLayout& first, const BatchSearchOptions& options,
                                const std::function<bool(int64_t)>& poll = {});

}  // namespace heteroplace::throughput
