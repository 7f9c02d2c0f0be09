#pragma once

#include <vector>

#include "decompose/module.h"
#include "search/moves/patterns.h"
#include "search/moves/selection.h"

namespace heteroplace::search {

/*!
 * \brief Drops the patterns of large classes that are neither selected nor best between two
 * memories at some price near the present one; the selection's ids are put right.
 */
void PrunePatterns(const decompose::Modules& modules, const std::vector<double>& price,
                   Patterns& patterns, Selection& selection);

}  // namespace heteroplace::search
