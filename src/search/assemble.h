#pragma once

#include "decompose/module.h"
#include "model/native_plan.h"
#include "model/problem.h"
#include "search/moves/patterns.h"
#include "search/moves/selection.h"

namespace heteroplace::search {

/*! \brief The plan of a selection: its modules one after the other. */
model::NativePlan AssemblePlan(const model::Problem& problem, const decompose::Modules& modules,
                               const Patterns& patterns, const Selection& selection);

}  // namespace heteroplace::search
