#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::list {

/*! \brief The devices that each task should use: the preferred among the allowed, else all. */
model::Csr PreferredDevices(const model::Problem& problem, std::span<const uint8_t> preferred);

/*! \brief Mean run time of each task in ns over its devices, [num_tasks]. */
std::vector<double> MeanRuns(const model::Problem& problem, const model::Csr& devices);

/*!
 * \brief Mean transfer time of so many items of each tensor, as one copy, in ns over the ordered
 * pairs of distinct preferred devices with a route, [num_tensors]; pairs in one memory count as 0.
 */
std::vector<double> MeanTransfers(const model::Problem& problem, std::span<const uint8_t> preferred,
                                  int num_items = 1);

/*! \brief Mean transfer times over all devices. */
std::vector<double> MeanTransfers(const model::Problem& problem, int num_items = 1);

/*!
 * \brief Upward ranks in ns, [num_tasks]: mean run time, plus the largest mean transfer + rank of
 * a reader (HEFT, equation 4), by means over the preferred devices of each task.
 */
std::vector<double> UpwardRanks(const model::Problem& problem, std::span<const uint8_t> preferred);

/*! \brief Upward ranks by means over all devices that each task is allowed on. */
std::vector<double> UpwardRanks(const model::Problem& problem);

/*!
 * \brief Upward ranks in ns, [num_tasks]: mean over the devices of the time of all items at the
 * best batch size, plus the largest mean transfer of all items + rank of a reader (HEFT, equation
 * 4, for one item). Transfers are those of MeanTransfers().
 */
std::vector<double> BatchRanks(const model::Problem& problem, int num_items);

/*! \brief Task ids by falling rank, ties by id: a topological order. */
std::vector<int> OrderByRank(std::span<const double> rank);

/*!
 * \brief Calls `place(task)` for each task once: of those whose producers are done, the one of
 * highest priority goes next; ties by id.
 * \param priority [num_tasks]
 */
template <typename Place>
void ForEachReady(const model::Problem& problem, std::span<const double> priority, Place place) {
  const auto is_later = [priority](int left, int right) {
    if (priority[left] != priority[right]) return priority[left] < priority[right];
    return left > right;
  };
  std::priority_queue<int, std::vector<int>, decltype(is_later)> ready(is_later);
  std::vector<size_t> waiting(static_cast<size_t>(problem.num_tasks));
  for (int task = 0; task < problem.num_tasks; ++task) {
    waiting[task] = problem.predecessors[task].size();
    if (waiting[task] == 0) ready.push(task);
  }
  while (!ready.empty()) {
    const int task = ready.top();
    ready.pop();
    place(task);
    for (int next : problem.successors[task]) {
      if (--waiting[next] == 0) ready.push(next);
    }
  }
}

}  // namespace heteroplace::list
