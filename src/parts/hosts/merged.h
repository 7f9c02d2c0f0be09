// The programs of all hosts, and the recordings of all ranks, as if one machine had run them.
#pragma once

#include <vector>

#include "exec/program/program.h"
#include "exec/trace/trace.h"
#include "parts/hosts/ranked_executor.h"

namespace heteroplace::exec {

/*!
 * \brief One program with the spaces, queues, tensors and kernels of all, host after host; queues
 * are named "host/queue". To describe and to draw, not to run.
 * \param programs by host.
 */
Program MergedPrograms(const std::vector<Program>& programs);

/*!
 * \brief One recording by the clock of the rank that asks, with the requests that all ranks have.
 * \param programs by host.
 * \param merged all of them as one, to which the queues and streams of the recording belong.
 * \param traces by host.
 * \param own host of the rank that asks.
 */
Trace MergedTraces(const std::vector<Program>& programs, const Program& merged,
                   const std::vector<RankTrace>& traces, int own);

}  // namespace heteroplace::exec
