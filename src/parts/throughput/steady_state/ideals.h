#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"

namespace heteroplace::throughput {

/*! \brief Limits of the search over ideals. */
struct IdealOptions {
  int max_ideals = 20'000;
  int64_t max_stages = 30'000'000;  // looked at, of all limits of a load together
};

/*! \brief The best split of a graph into one contiguous stage for each device. */
struct IdealSplit {
  std::vector<int> device;  // [num_tasks]; empty: too many ideals or stages, or none fits
  int64_t load_ns = 0;      // largest load of a stage, as stages are priced
  int num_ideals = 0;
};

/*!
 * \brief Dynamic programming over the ideals of a graph: the sets of tasks that hold all their
 * predecessors ("Efficient Algorithms for Device Placement of DNN Graph Operators", 2020).
 *
 * A stage is the difference of two ideals; the best way to an ideal with some devices used is the
 * best way to a smaller one with one device less, and the stage between. A stage costs its run
 * time and its copies: added up where copies occupy the device, else the longer of both. Tasks of a
 * group, with what lies between them, are one node; where that would be most of the graph (forward
 * and backward tasks together), edges against the order of first tasks are left out instead.
 *
 * Unlike there: an output is copied once, whoever reads it, and at the time between like devices,
 * so the load is that of a placement only if all readers of a tensor are in one memory. Stages
 * above a limit of the load are not looked at; the limit is raised until a split is found, which
 * is then the best one. Devices that share a unit with an earlier one get no stage.
 */
IdealSplit BestIdealSplit(const model::Problem& problem, const IdealOptions& options);

}  // namespace heteroplace::throughput
