// When others may help with a call: how long it takes, and what a lost core costs.
#pragma once

#include <cstdint>

#include "exec/engine/sync.h"

namespace heteroplace::exec {

/*! \brief Calls of an instruction that are timed, without help, to know whether that pays. */
inline constexpr int kTimedCalls = 3;

/*! \brief Calls that take less are not open: tickets and results that go from core to core take
 * some 4 us. */
inline constexpr int64_t kMinOpenNs = 12'000;

/*! \brief A chunk that is waited for as long, and longer than the whole call takes, is of a core
 * that another program uses. */
inline constexpr int64_t kLostCoreNs = 100'000;

/*! \brief Most calls without help after a core was lost. */
inline constexpr int64_t kMaxClosedCalls = 4096;

/*! \brief How long a call takes, from its first `kTimedCalls` times. */
struct CallTime {
  int32_t num_timed = 0;
  int64_t min_ns = kNever;
};

}  // namespace heteroplace::exec
