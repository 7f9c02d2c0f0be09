// What a compiled file needs of the machine, and which parts belong together: a text of lines
//
//   heteroplace-needs 1                 (2: of a plan over several hosts)
//   machine <name>
//   host <rank>                         (2 only, from 0 on: what follows is needed on that host)
//   feature <name>                      (of the processor; any number of lines)
//   cuda <device id> <compute capability, as 80 for 8.0>
//   code <SHA-256>        program <SHA-256>        weights <SHA-256>
//   end
//
// The digests say for which code and weights the program was written: a file put together from
// parts of several is refused, although the table's digests are right for each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/file/parts.h"

namespace heteroplace::exec {

/*! \brief Least compute capability of a GPU, for the code that a file has for it. */
struct CudaNeed {
  int32_t device_id;
  /*! \brief 10 times major + minor. */
  int32_t capability;
};

/*! \brief What one host needs. */
struct HostNeeds {
  std::vector<std::string> features;
  std::vector<CudaNeed> cuda;
};

struct Needs {
  std::string machine;
  /*! \brief [num_hosts], by rank; one of a file for one host. */
  std::vector<HostNeeds> hosts;
  /*! \brief Hexadecimal. */
  std::string code, program, weights;
};

/*! \throws Error kArtifact: which line is wrong. */
Needs ParseNeeds(const OpenFile& file, std::string_view text);

/*! \brief Checks that the parts are those that were written together. \throws Error kArtifact. */
void CheckTogether(const OpenFile& file, const Needs& needs, const FileParts& parts);

/*! \brief What of machine and processor a file needs on a host and this computer lacks; empty:
 * nothing. \param host its rank. */
std::vector<std::string> MissingOfProcessor(const Needs& needs, size_t host);

/*!
 * \brief What of compute capability a file needs on a host and the GPUs here lack; empty: nothing.
 *
 * Whether a GPU is here at all is told by who takes it.
 */
std::vector<std::string> MissingOfGpus(const Needs& needs, size_t host);

/*! \brief Throws unless nothing is missing. \throws Error kExecution: all that is. */
void ExpectNothingMissing(const OpenFile& file, const std::vector<std::string>& missing);

}  // namespace heteroplace::exec
