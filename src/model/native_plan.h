#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/problem.h"
#include "model/steps.h"

namespace heteroplace::model {

/*! \brief One copy of a plan. */
struct ScheduledCopy {
  int tensor;
  int src;
  int dst;
  int64_t start_ns;
  int64_t finish_ns;
};

/*! \brief Where and when everything happens; a scheduler's result, before it becomes steps. */
struct NativePlan {
  std::vector<int> device;            // [num_tasks]
  std::vector<int64_t> start_ns;      // [num_tasks]
  std::vector<ScheduledCopy> copies;  // in the order of making
  int64_t makespan_ns = 0;
  int64_t violation = 0;  // 0: it can be run; see Violation()
};

/*! \brief Added to the violation for each tensor that cannot reach a memory where it is read. */
inline constexpr int64_t kUnreachablePenalty = int64_t{1} << 50;
/*! \brief What such penalties add up to at most: with all bytes it is still far from overflow. */
inline constexpr int64_t kMaxUnreachable = int64_t{1} << 61;

/*! \brief The penalty of so many tensors. */
inline int64_t Unreachable(int64_t count) {
  return std::min(count, kMaxUnreachable / kUnreachablePenalty) * kUnreachablePenalty;
}

/*! \brief Adds the penalty of one tensor. */
inline void AddUnreachable(int64_t& violation) {
  if (violation < kMaxUnreachable) violation += kUnreachablePenalty;
}

/*!
 * \brief The steps of a plan in order of start; ties by finish, then by topological order.
 *
 * That order keeps dependencies (a producer finishes before its readers start) and the order of
 * service of each unit and channel, so simulating the steps is never later than the plan.
 */
Steps ToSteps(const Problem& problem, const NativePlan& plan);

}  // namespace heteroplace::model
