// Ranks as threads of one process: messages that are copied in memory, late by chance.
//
// It runs the programs of all hosts where there is no MPI, and shows in tests what only a slow
// network would: each message takes a time of its own, so that what nobody waits for comes late.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/net/transport.h"

namespace heteroplace::exec {

/*! \brief How messages behave that are copied in memory. */
struct LocalOptions {
  /*! \brief Of the delays. */
  uint64_t seed = 0;
  /*! \brief Each message takes from 0 to this long after both sides have started it. */
  int64_t max_delay_ns = 0;
  /*! \brief A send is complete when its bytes are taken, not when they are received. */
  bool is_buffered = false;
};

/*!
 * \brief Makes the ranks of a job, for as many threads. As with MPI, only the calls of the
 * receiving rank deliver a message.
 * \return [num_ranks] the transport of each; they may be destroyed in any order.
 */
std::vector<std::unique_ptr<Transport>> MakeLocalTransports(int num_ranks,
                                                            const LocalOptions& options);

}  // namespace heteroplace::exec
