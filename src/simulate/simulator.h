#pragma once

#include <cstdint>
#include <vector>

#include "model/native_plan.h"
#include "model/problem.h"
#include "model/steps.h"

namespace heteroplace::simulate {

/*! \brief When each step starts and finishes, and what the memories hold. */
struct Times {
  std::vector<int64_t> start_ns;    // [num_steps]
  std::vector<int64_t> finish_ns;   // [num_steps]
  std::vector<int64_t> used_bytes;  // [num_memories], by the static rule
  std::vector<int64_t> held_bytes;  // [num_memories], of the peak what is live always
  std::vector<int64_t> peak_bytes;  // [num_memories], largest number of live bytes (LiveMemory)
  std::vector<int64_t> peak_ns;     // [num_memories], when there are as many first
  std::vector<int64_t> peak_step;   // [num_memories], at whose start; -1: before any step
  int64_t makespan_ns = 0;
};

/*!
 * \brief Runs the plan on paper, in one pass: each step starts when what it occupies is free of
 * earlier steps and its tensors are in its memory.
 *
 * Throws Error(kPlan) if a step names what does not exist or needs a tensor that no earlier step
 * brought to its memory, or if a device cannot run its task or batch.
 * Complexity: O(steps + items read and made), and a sort of the latter for the live memory.
 */
Times Simulate(const model::Problem& problem, const model::Steps& steps);

/*! \brief Live bytes over capacity at the peaks, summed over the memories; 0: the plan fits. */
int64_t LiveOverflow(const model::Problem& problem, const model::NativePlan& plan);

}  // namespace heteroplace::simulate
