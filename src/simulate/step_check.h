#pragma once

#include "model/problem.h"
#include "model/steps.h"

namespace heteroplace::simulate {

/*!
 * \brief How many resources explicit steps may occupy: those of the problem and, numbered behind
 * them, parts of rooms for weights, no more than are named.
 */
int NumResources(const model::Problem& problem, const model::ExplicitSteps& steps);
/*! \brief Throws Error(kPlan) unless the lists of a plan have sizes that agree. */
void CheckLists(const model::Problem& problem, const model::Steps& steps);
/*! \brief Throws Error(kPlan) unless all that a step names exists. */
void CheckStep(const model::Problem& problem, const model::Steps& steps, int index);

}  // namespace heteroplace::simulate
