// What a recording of many requests holds: when each instruction ran, waited and was given up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heteroplace::exec {

/*! \brief One instruction of one request, in ns from the start of the recording. */
struct TraceEvent {
  /*! \brief Position of the request among those recorded, in the order of submission. */
  int64_t request;
  /*! \brief The slot that the request was in. */
  int32_t slot;
  /*! \brief Position in `Program::queues`, and in the queue's instructions. */
  int32_t queue;
  int32_t instruction;
  /*! \brief False: the request failed or was cancelled here, while this waited or ran, and the
   * queue went on with the next request. */
  bool is_done;
  /*! \brief How long it waited for other queues: from `start_ns - wait_ns` on. */
  int64_t wait_ns;
  int64_t start_ns;
  int64_t finish_ns;
  /*! \brief Of a call in a group that was done, the queue whose core did it, or the stream beside
   * its queue's (`Program::FirstSides`); -1: of all others. */
  int32_t core = -1;
};

/*! \brief One request, from its submission to the moment at which its last queue was done. */
struct TraceRequest {
  int64_t request;
  int32_t slot;
  bool has_failed;
  int64_t start_ns;
  int64_t finish_ns;
  /*! \brief Whether one thread did all of it, on whatever core, in place of the queues' own. */
  bool is_serial = false;
};

/*! \brief How well the times of a host are tied to those of the rank that recorded. */
struct TraceClockError {
  std::string host;
  int64_t uncertainty_ns;
};

/*! \brief A recording: of each request all of its queues, or nothing. */
struct Trace {
  /*! \brief When it began, by the monotonic clock of the system. */
  int64_t origin_ns = 0;
  int64_t duration_ns = 0;
  std::vector<TraceEvent> events;      // by request, queue, instruction
  std::vector<TraceRequest> requests;  // in order
  /*! \brief Older requests, overwritten by those that are here. */
  int64_t num_dropped = 0;
  /*! \brief Requests with a step that did not end. */
  int64_t num_unfinished = 0;
  /*! \brief Of a recording of several hosts; else empty. */
  std::vector<TraceClockError> clocks;
};

}  // namespace heteroplace::exec
