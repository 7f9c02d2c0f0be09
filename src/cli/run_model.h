// Runs a compiled file as the command line says, and tells of it.
#pragma once

#include "cli/run_options.h"

namespace heteroplace::cli {

/*! \brief Writes what it found to the standard output. \throws Stop. */
void RunModel(const RunOptions& options);

}  // namespace heteroplace::cli
