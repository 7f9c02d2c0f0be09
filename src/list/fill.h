#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief What happens when a task does not fit into the memory that is being filled. */
enum class FillRule {
  kClose,   // it is closed for good (Baechi's m-TOPO)
  kReturn,  // tasks for which no later memory has room may still go back to it
};

/*!
 * \brief Fills one memory after the other in the given order; returns the device of each task.
 *
 * Memories go from the fastest to the slowest, by the time that all tasks would take on their best
 * device; the tasks of one memory each go to its fastest device for them. What a task brings:
 * weights, tensors it makes, tensors it reads that are not there yet, growth of the workspace; for
 * the first of a group that of the whole group. Where the problem counts lifetimes, tensors are
 * freed after the last task of the order that reads them, and those of a group count when its tasks
 * are due, so later tasks of a group may overflow. A task that may not be in the current memory
 * goes to the next one that can run it and has room, without a change of the current one. Without
 * any room a task goes where it lacks least.
 *
 * \param order [num_tasks], a topological order.
 * \param capacity [num_memories] bytes, at most the real ones.
 *
 * Complexity: O((reads + makes) * num_memories).
 */
std::vector<int> FillMemories(const model::Problem& problem, std::span<const int> order,
                              std::span<const int64_t> capacity, FillRule rule);

/*!
 * \brief Capacities for the uniform cap of Baechi: the sum of what all tasks bring / number of
 * memories that have devices, plus the most that one brings; never above the real capacities.
 */
std::vector<int64_t> UniformCapacity(const model::Problem& problem);

/*! \brief Schedules a placement, the tasks in the given topological order, with insertion. */
model::NativePlan ScheduleInOrder(const model::Problem& problem, std::span<const int> device,
                                  std::span<const int> order);

}  // namespace heteroplace::list
