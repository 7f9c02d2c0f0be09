#pragma once

#include <cstdint>
#include <span>
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
  Csr items;               // [num_steps], or no rows: every step is for item 0
  int num_items = 1;       // of the plan

  /*! \brief Items of a step: those of a run are one batch. */
  std::span<const int> ItemsOf(int step) const {
    static constexpr int kFirst[] = {0};
    return items.num_rows() == 0 ? std::span<const int>(kFirst) : items[step];
  }
};

/*! \brief When each step starts and finishes, and what the memories hold. */
struct Times {
  std::vector<int64_t> start_ns;    // [num_steps]
  std::vector<int64_t> finish_ns;   // [num_steps]
  std::vector<int64_t> used_bytes;  // [num_memories], by the static rule
  std::vector<int64_t> peak_bytes;  // [num_memories], largest number of live bytes
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
 * Complexity: O(steps + items read and made), and two sorts of the steps for the live memory.
 */
Times Simulate(const Problem& problem, const Steps& steps);

}  // namespace heteroplace
