#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"

namespace heteroplace {

/*! \brief What a step of a plan does. */
enum class StepKind { kRun = 0, kCopy = 1 };

/*! \brief A step of a plan. */
struct Step {
  StepKind kind;
  int subject;  // task of a run, tensor of a copy
  int place;    // device of a run, destination memory of a copy
  int src;      // memory that a copy reads; -1 for a run
};

/*! \brief The ordered program of run and copy steps, with the links of each copy. */
struct Steps {
  std::vector<Step> list;  // [num_steps]
  Csr links;               // [num_steps], empty for runs
};

/*! \brief When each step starts and finishes, and what the memories hold. */
struct Times {
  std::vector<int64_t> start_ns;    // [num_steps]
  std::vector<int64_t> finish_ns;   // [num_steps]
  std::vector<int64_t> used_bytes;  // [num_memories], by the static rule
  int64_t makespan_ns = 0;
};

/*!
 * \brief Runs the plan on paper, in one pass: each step starts when its units or channels are free
 * of earlier steps and its tensors are in its memory.
 *
 * Throws Error(kPlan) if a step needs a tensor that no earlier step brought to its memory, or if a
 * device cannot run its task. Complexity: O(steps + reads).
 */
Times Simulate(const Problem& problem, const Steps& steps);

}  // namespace heteroplace
