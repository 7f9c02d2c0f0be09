// Messages between processes by an MPI library, found at run time (mpi_abi.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "exec/net/transport.h"
#include "parts/hosts/transports/mpi_abi.h"

namespace heteroplace::exec {

/*! \brief Which library and which ranks. */
struct MpiOptions {
  /*! \brief Path of the library; "": see FindMpi. */
  std::string library = {};
  /*!
   * \brief The handle of the ranks' communicator, from a program that has begun MPI itself (of
   * mpi4py `MPI._handleof(comm)`); none: all ranks that the launcher has started.
   */
  std::optional<MpiHandle> communicator = {};
  /*! \brief Messages above go in parts of so many bytes; at most 2^31 - 1, MPI's limit. */
  int64_t part_bytes = int64_t{1} << 30;
};

/*!
 * \brief Makes the transport of this rank. All ranks of the communicator call it, in one order.
 *
 * Begins MPI if nobody has, and then ends it when the process exits, unless a transport was
 * aborted: who waits for the dead does not end. Whoever began it must have asked for
 * MPI_THREAD_SERIALIZED at least; with no more, other threads make no calls of MPI meanwhile.
 * \throws Error kExecution: no library, one that is refused, another one than before in this
 *         process, too low a level of threads, a launcher of another MPI, or what MPI says.
 */
std::unique_ptr<Transport> MakeMpiTransport(const MpiOptions& options);

/*!
 * \brief Ends MPI as if MakeMpiTransport had begun it, for one who leaves that to us.
 *
 * In children of this process nothing is ended: they are no ranks, and would wait for ever.
 */
void EndMpiAtExit();

}  // namespace heteroplace::exec
