#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::list {

/*! \brief The devices that each task should use: the preferred among the allowed, else all. */
model::Csr PreferredDevices(const model::Problem& problem, std::span<const uint8_t> preferred);

/*! \brief Mean run time of each task in ns over its devices, [num_tasks]. */
std::vector<double> MeanRuns(const model::Problem& problem, const model::Csr& devices);

/*!
 * \brief Mean transfer time of each tensor in ns over the ordered pairs of distinct preferred
 * devices, [num_tensors]; pairs in one memory count as 0, pairs without a route are left out.
 */
std::vector<double> MeanTransfers(const model::Problem& problem,
                                  std::span<const uint8_t> preferred);

/*!
 * \brief Upward ranks in ns, [num_tasks]: mean run time, plus the largest mean transfer + rank of
 * a reader (HEFT, equation 4), by means over the preferred devices of each task.
 */
std::vector<double> UpwardRanks(const model::Problem& problem, std::span<const uint8_t> preferred);

/*! \brief Upward ranks by means over all devices that each task is allowed on. */
std::vector<double> UpwardRanks(const model::Problem& problem);

/*! \brief Task ids by falling rank, ties by id: a topological order. */
std::vector<int> OrderByRank(std::span<const double> rank);

}  // namespace heteroplace::list
