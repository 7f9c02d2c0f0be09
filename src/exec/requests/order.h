// What the ranks of a job do together, in the order in which the feeding rank's engine does it.
#pragma once

#include <cstdint>

namespace heteroplace::exec {

/*! \brief One thing that all ranks do. */
struct Order {
  enum Kind : int64_t {
    kRun,         ///< one request
    kBenchmark,   ///< `count` runs in a row
    kProfile,     ///< the same, every instruction timed; answered by the times
    kProfileCpu,  ///< the same by processor time
    kStartTrace,  ///< recording of the last `count` requests; 0: as many as fit
    kStopTrace,   ///< answered by the recording
    kClock,       ///< round trips follow
    kMemory,      ///< answered by the bytes that are held
    kStop         ///< the job is over
  };

  int64_t kind = kRun;
  int64_t count = 1;

  /*! \brief Whether the rank that orders it reads something of each other one then. */
  bool IsAnswered() const {
    return kind == kProfile || kind == kProfileCpu || kind == kStopTrace || kind == kClock ||
           kind == kMemory;
  }
};

}  // namespace heteroplace::exec
