// What the ranks of a job must agree on before any of them loads: the file, and who runs which
// host.
#pragma once

#include <string>
#include <vector>

#include "exec/file/compiled_file.h"
#include "exec/program/program.h"
#include "parts/hosts/group.h"

namespace heteroplace::exec {

/*! \brief What this rank was asked to load. */
struct JobFile {
  /*! \brief Its path, for messages. */
  std::string path;
  /*! \brief What all ranks must have alike of it; "" with a fault. */
  std::string digest;
  /*! \brief Programs of all hosts. */
  std::string program_text;
  /*! \brief Why it cannot be read; "": it was. */
  std::string fault;
};

/*! \brief The file as far as it was read. */
JobFile JobFileOf(const std::string& path, const CompiledFile& file);

/*!
 * \brief Compares file and options of all ranks, and gives each its host; all ranks.
 * \param hosts names of the hosts of ranks 0, 1, ..., with commas between; "": in the order of the
 * cluster.
 * \param max_in_flight which all must have alike.
 * \return names of the hosts.
 * \throws Error kExecution on all ranks: a rank that cannot read the file or has another one, too
 * few or too many ranks, an unknown host.
 */
std::vector<std::string> AgreeOnFile(Group* group, const JobFile& file, const std::string& hosts,
                                     int max_in_flight, const Limit& limit);

/*!
 * \brief Refuses state of a host that does not feed the model, for callers who cannot set it there;
 * all ranks, after AgreeOnFile.
 * \throws Error kExecution on all ranks: which state, and where.
 */
void ExpectNoServedState(Group* group, const JobFile& file);

/*! \brief Throws Error kExecution for programs of several hosts, which need as many ranks. */
void ExpectOneHost(const std::string& path, const std::string& program_text);

/*!
 * \brief Takes the names away from the files in memory by which ranks of one machine met.
 *
 * Which MPICH takes away itself only if all end well. After Meet, when all have opened them.
 */
void ForgetSharedFiles();

}  // namespace heteroplace::exec
