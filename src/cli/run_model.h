// Runs a compiled file as the command line says, and tells of it.
#pragma once

#include "cli/model.h"
#include "cli/run_options.h"

namespace heteroplace::cli {

/*!
 * \brief Writes what it found to the standard output.
 *
 * As one of several ranks it does so only if it feeds the model; else it serves the one that does.
 * \param job null: this process is alone.
 * \throws Stop.
 */
void RunModel(const RunOptions& options, Job* job);

}  // namespace heteroplace::cli
