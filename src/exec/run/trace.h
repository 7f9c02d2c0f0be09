// Measured times of instructions, of any number of requests -> a trace in Chrome's trace-event
// format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing show.
//
// One row per queue, one per slot, an arrow for each wait of one queue for another (of a copy for
// what it reads, of a reader for the copy), and counters of the requests at work and of the memory
// that their values take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief When one instruction of one request was carried out. */
struct InstructionSpan {
  /*! \brief Number of the request, in the order of submission. */
  int64_t request;
  /*! \brief The slot that the request was in. */
  int32_t slot;
  /*! \brief Position in `Program::queues`, and in the queue's instructions. */
  int32_t queue;
  int32_t instruction;
  /*! \brief Of one clock for all; the trace begins with the first one. */
  int64_t start_ns;
  int64_t finish_ns;
};

/*!
 * \brief The trace as JSON. Linear in the spans, but for sorting them.
 * \param spans in any order; each instruction of a request at most once.
 * \param step_names of the plan's steps, [num_steps]; without one a call has its kernel's name.
 */
std::string TraceJson(const Program& program, std::vector<InstructionSpan> spans,
                      const std::vector<std::string>& step_names = {});

}  // namespace heteroplace::exec
