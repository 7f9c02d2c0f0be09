// What a processor can do, by the names that LLVM has for it.
#pragma once

#include <string>
#include <vector>

namespace heteroplace::exec {

/*! \brief The machine that this library was compiled for, as in a file's needs ("x86_64"). */
std::string MachineName();

/*!
 * \brief Features that a compiler may use without being asked again, in a fixed order.
 *
 * Those of a target that are not among them (tuning, special instructions that are only called by
 * name) are not needed to run its code.
 */
std::vector<std::string> KnownFeatures();

/*! \brief Those of the known features that this processor and its system have. */
std::vector<std::string> PresentFeatures();

/*!
 * \brief Ask the system to keep the tiles of AMX for this process, as Linux does only then.
 * \return whether it does.
 */
bool RequestTiles();

}  // namespace heteroplace::exec
