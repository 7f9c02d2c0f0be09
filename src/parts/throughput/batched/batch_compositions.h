#pragma once

#include <vector>

#include "list/engine/watch.h"
#include "model/problem.h"

namespace heteroplace::throughput {

/*! \brief One part of a composition: a batch of so many items on a device. */
struct DeviceBatch {
  int device;
  int size;
};

/*! \brief The parts that serve all items of a task, one batch on a device, by device id. */
using Composition = std::vector<DeviceBatch>;

/*!
 * \brief The compositions of a task with at most three parts; if there are none, those with as few
 * parts as possible. Empty: the sizes that the devices run do not sum to num_items.
 *
 * There are O((devices * batch sizes)^2) of two parts and so on, so few sizes are meant.
 * \param watch Asked every few thousand parts.
 */
std::vector<Composition> Compositions(const model::Problem& problem, int task, int num_items,
                                      const list::Watch& watch = {});

/*!
 * \brief The tasks that have no composition, ascending.
 *
 * Complexity: O(devices * batch sizes * items / 64) for each set of batches that some task may run
 * in, beside looking at all of them.
 */
std::vector<int> UnservedTasks(const model::Problem& problem, int num_items);

/*!
 * \brief Sorts compositions by their run times per item, the fastest part compared first: the
 * first one has the (device, batch size) pair of least time per item. Stable.
 */
void SortByTimePerItem(const model::Problem& problem, int task,
                       std::vector<Composition>& compositions);

}  // namespace heteroplace::throughput
