// A recording of many requests -> a trace in Chrome's trace-event format, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing show.
//
// One row per queue with what it ran and waited for, requests as asynchronous events, an arrow from
// the maker of a tensor over its copies to their readers, and counters of the requests in flight
// and of the memory that they take.
#pragma once

#include <string>
#include <vector>

#include "exec/program/program.h"
#include "exec/trace/trace.h"

namespace heteroplace::exec {

/*!
 * \brief The trace as JSON. Linear in the events.
 * \param step_names of the plan's steps, [num_steps]; empty: the program's own. Without one a call
 * has its kernel's name.
 */
std::string TraceJson(const Program& program, const Trace& trace,
                      const std::vector<std::string>& step_names = {});

}  // namespace heteroplace::exec
