#pragma once

#include "decompose/module.h"
#include "model/native_plan.h"
#include "model/problem.h"
#include "search/patterns.h"
#include "search/selection.h"

namespace heteroplace {

/*! \brief The schedule of a selection: its pieces one after the other. */
Schedule AssembleSchedule(const Problem& problem, const Chain& chain, const Patterns& patterns,
                          const Selection& selection);

}  // namespace heteroplace
