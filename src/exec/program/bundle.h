// The programs of all hosts of a plan, in one text: each is sound alone, all are together.
#pragma once

#include <string_view>
#include <vector>

#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief One program's text, and the number of its first line in the whole. */
struct ProgramText {
  std::string_view text;
  int first_line;
};

/*!
 * \brief The texts of the programs of a bundle, by rank; that of one host alone is its own.
 * \throws Error kArtifact if their number is not what the bundle says.
 */
std::vector<ProgramText> SplitPrograms(std::string_view text);

/*!
 * \brief Reads the programs of all hosts, by rank, and checks each of them and all together.
 * \throws Error kArtifact, which names the line, what was expected and what was found.
 */
std::vector<Program> ParsePrograms(std::string_view text);

/*!
 * \brief Checks that programs fit together: ranks in order, each message one send and one receive
 * on the two right hosts, of equal type and shape, in the same order at both ends, and no deadlock.
 *
 * Time is linear in instructions and waits, but for the order in which GPUs are issued work.
 * \param programs each sound alone.
 * \throws Error kArtifact.
 */
void CheckBundle(const std::vector<Program>& programs);

/*! \brief Of the only host with ports beside state, which is the one that feeds and reads the
 * model; the first one where none has. */
int FeedingHost(const std::vector<Program>& programs);

}  // namespace heteroplace::exec
