// `_core.Trace`: recordings of requests, as arrays and as a Chrome trace.
#include "exec/trace/trace.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "exec/engine/executor.h"
#include "exec/trace/trace_json.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

constexpr size_t kEventColumns = 9;
constexpr size_t kRequestColumns = 5;
using EventRows = nb::shape<-1, kEventColumns>;
using RequestRows = nb::shape<-1, kRequestColumns>;

Numpy<int64_t, EventRows> Events(const exec::Trace& trace) {
  std::vector<int64_t> values;
  values.reserve(trace.events.size() * kEventColumns);
  for (const exec::TraceEvent& at : trace.events) {
    values.insert(values.end(), {at.request, at.slot, at.queue, at.instruction, at.is_done,
                                 at.wait_ns, at.start_ns, at.finish_ns, at.core});
  }
  return ToNumpy<EventRows>(std::move(values), kEventColumns);
}

Numpy<int64_t, RequestRows> Requests(const exec::Trace& trace) {
  std::vector<int64_t> values;
  for (const exec::TraceRequest& at : trace.requests) {
    values.insert(values.end(), {at.request, at.slot, at.has_failed, at.start_ns, at.finish_ns});
  }
  return ToNumpy<RequestRows>(std::move(values), kRequestColumns);
}

std::string Json(const exec::Trace& trace, const exec::Executor& executor,
                 const std::vector<std::string>& step_names) {
  return Unlocked([&] { return exec::TraceJson(executor.program(), trace, step_names); });
}

void StartTrace(exec::Executor& executor, std::optional<int64_t> max_requests) {
  Unlocked([&] { executor.StartTrace(max_requests); });
}

exec::Trace StopTrace(exec::Executor& executor, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  return Unlocked([&] { return executor.StopTrace(limit); });
}

}  // namespace

void BindTrace(nb::module_& module) {
  nb::class_<exec::Trace>(module, "Trace", "A recording of requests; see src/exec/trace/trace.h.")
      .def_ro("origin_ns", &exec::Trace::origin_ns, "When it began, by the monotonic clock.")
      .def_ro("duration_ns", &exec::Trace::duration_ns, "How long it took.")
      .def_ro("num_dropped", &exec::Trace::num_dropped, "Older requests that are not in it.")
      .def_ro("num_unfinished", &exec::Trace::num_unfinished, "Requests that have not ended.")
      .def("events", &Events,
           "Request, slot, queue, instruction, is done, wait_ns, start_ns, finish_ns and core of "
           "each, [num_events][9].")
      .def("requests", &Requests,
           "Number, slot, has failed, start_ns and finish_ns of each, [num_requests][5].")
      .def("json", &Json, nb::arg("executor"), nb::arg("step_names"),
           "The text of a Chrome trace; the executor is the one that recorded it.");
  module
      .def("start_trace", &StartTrace, nb::arg("executor"),
           nb::arg("max_requests").none() = nb::none(),
           "Record the requests that begin from now on; see src/exec/engine/executor.h.")
      .def("stop_trace", &StopTrace, nb::arg("executor"), nb::arg("timeout_s").none() = nb::none(),
           "End the recording: what was recorded.");
}

}  // namespace heteroplace::bind
