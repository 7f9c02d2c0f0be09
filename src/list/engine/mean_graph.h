#pragma once

#include <cstdint>
#include <vector>

#include "graph/dag.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief The tasks of a problem as a graph with mean times, in ns. */
struct MeanGraph {
  graph::Dag dag;
  std::vector<int64_t> run_ns;       // [num_tasks], mean over the devices a task is allowed on
  std::vector<int64_t> transfer_ns;  // [num_edges], mean over pairs of devices, summed over tensors
};

/*! \brief Rounds the means of MeanRuns and MeanTransfers. */
MeanGraph MakeMeanGraph(const model::Problem& problem);

/*! \brief CPD-TOPO of Celeritas (section 5.1) with mean times. */
std::vector<int> CriticalPathOrder(const model::Problem& problem);

}  // namespace heteroplace::list
