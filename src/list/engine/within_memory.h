#pragma once

#include <algorithm>

#include "model/native_plan.h"
#include "model/problem.h"
#include "simulate/simulator.h"

namespace heteroplace::list {

/*!
 * \brief The plan of a list scheduler; where it lacks memory, the one by the static rule if that
 * lacks less.
 *
 * A scheduler that places a task into a gap frees tensors in the order of its choices, which is not
 * that of time; with nothing freed it may be slower, but what fits then fits in any order.
 * \param make_plan Of a problem.
 */
template <typename MakePlan>
model::NativePlan PlanWithinMemory(const model::Problem& problem, const MakePlan& make_plan) {
  model::NativePlan plan = make_plan(problem);
  if (plan.violation == 0 || !problem.counts_lifetimes) return plan;
  model::NativePlan other = make_plan(problem.Static());
  if (other.violation > 0 && other.violation < model::kUnreachablePenalty) {
    other.violation = simulate::LiveOverflow(problem, other);
  }
  return other.violation < plan.violation ? other : plan;
}

}  // namespace heteroplace::list
