// What the transport costs: its messages against the same functions of MPI in a bare loop.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/net/mpi_transport.h"

namespace heteroplace::exec {

/*! \brief One size; medians over the rounds of half a round trip, in ns. 0 on other ranks than 0.
 */
struct PingPong {
  int64_t bytes = 0;
  /*! \brief Messages of the transport, the receive posted before the send. */
  double ours_ns = 0;
  /*! \brief MPI_Send and MPI_Recv. */
  double send_recv_ns = 0;
  /*! \brief MPI_Start and MPI_Wait of persistent requests, in the same order as ours. */
  double persistent_ns = 0;
};

/*!
 * \brief Sends bytes to and fro between the ranks 0 and 1, in the three ways by turns. All ranks of
 * the communicator call it.
 * \param sizes below 2^31.
 * \param num_rounds from 1; each takes some milliseconds per size and way.
 * \throws Error kExecution: as MakeMpiTransport; fewer than two ranks.
 */
std::vector<PingPong> MeasurePingPong(const MpiOptions& options, const std::vector<int64_t>& sizes,
                                      int num_rounds);

}  // namespace heteroplace::exec
