#pragma once

#include "model/problem.h"
#include "sched/schedule.h"
#include "search/patterns.h"
#include "search/piece.h"
#include "search/selection.h"

namespace heteroplace {

/*! \brief The schedule of a selection: its pieces one after the other. */
Schedule AssembleSchedule(const Problem& problem, const Chain& chain, const Patterns& patterns,
                          const Selection& selection);

}  // namespace heteroplace
