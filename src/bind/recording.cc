// Recordings of an executor's requests and of their route decisions.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <vector>

#include "bind/executor.h"
#include "bind/values.h"
#include "exec/trace/trace.h"
#include "exec/trace/trace_json.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using AnyArray = Instance<"numpy.typing.NDArray[typing.Any]">;
using RouterShape = Instance<"heteroplace.model.routed.route_profile.RouterShape">;
using PredictionCounts = Instance<"heteroplace.native.execute.PredictionCounts">;

/*! \brief A finished recording; its arrays are records of 64-bit integers with named fields. */
struct RecordedTrace : exec::Trace {
  const exec::Program* program;  // of the executor that recorded
  AnyArray event_records;
  AnyArray request_records;
};

template <size_t kFields>
AnyArray ToRecords(std::vector<int64_t> values, const char* const (&fields)[kFields]) {
  nb::list types;
  for (const char* field : fields) types.append(nb::make_tuple(field, "i8"));
  const nb::object array = nb::cast(ToNumpy(std::move(values)));
  return {array.attr("view")(nb::module_::import_("numpy").attr("dtype")(types))};
}

AnyArray EventRecords(const exec::Trace& trace) {
  static constexpr const char* kFields[] = {"request",     "slot",      "queue",
                                            "instruction", "is_done",   "wait_ns",
                                            "start_ns",    "finish_ns", "core"};
  std::vector<int64_t> values;
  values.reserve(trace.events.size() * std::size(kFields));
  for (const exec::TraceEvent& at : trace.events) {
    values.insert(values.end(), {at.request, at.slot, at.queue, at.instruction, at.is_done,
                                 at.wait_ns, at.start_ns, at.finish_ns, at.core});
  }
  return ToRecords(std::move(values), kFields);
}

AnyArray RequestRecords(const exec::Trace& trace) {
  static constexpr const char* kFields[] = {"request",  "slot",      "has_failed",
                                            "start_ns", "finish_ns", "is_serial"};
  std::vector<int64_t> values;
  for (const exec::TraceRequest& at : trace.requests) {
    values.insert(values.end(),
                  {at.request, at.slot, at.has_failed, at.start_ns, at.finish_ns, at.is_serial});
  }
  return ToRecords(std::move(values), kFields);
}

void StartTrace(LoadedExecutor& self, std::optional<int64_t> max_requests) {
  self.Call("trace", [&](const exec::Limit&) { self.StartTrace(max_requests); });
}

RecordedTrace StopTrace(LoadedExecutor& self, std::optional<double> timeout_s) {
  exec::Trace trace = self.Call(
      "trace", [&](const exec::Limit& limit) { return self.StopTrace(limit); }, timeout_s);
  AnyArray events = EventRecords(trace), requests = RequestRecords(trace);
  return {std::move(trace), &self.program(), std::move(events), std::move(requests)};
}

std::string ChromeTrace(const RecordedTrace& self, const std::vector<std::string>& step_names) {
  return Unlocked([&] { return exec::TraceJson(*self.program, self, step_names); });
}

/*! \brief Routers of the program of this process, those of one name once. */
auto DescribeRouters(LoadedExecutor& self) {
  std::vector<RouterShape> shapes;
  const std::vector<exec::Router>& routers = self.local().program().routers;
  for (size_t r = 0; r < routers.size(); ++r) {
    if (routers[r].decision != static_cast<int32_t>(r)) continue;
    shapes.push_back(
        RouterShape::Of(routers[r].name, routers[r].num_cells, routers[r].num_branches()));
  }
  return ToTuple(shapes);
}

void PredictRoutes(LoadedExecutor& self,
                   const std::vector<std::pair<std::string, std::vector<int64_t>>>& routes) {
  std::vector<exec::PredictedBranches> all;
  all.reserve(routes.size());
  for (const auto& [router, branches] : routes) all.push_back({router, branches});
  Unlocked([&] { self.local().Predict(all); });
}

nb::typed<nb::dict, nb::str, PredictionCounts> DescribePredictions(LoadedExecutor& self) {
  nb::typed<nb::dict, nb::str, PredictionCounts> all;
  for (const auto& [router, counts] : Unlocked([&] { return self.local().PredictionsOf(); })) {
    all[router.c_str()] =
        PredictionCounts::Of(counts.num_requests, counts.num_exact, counts.num_wider, counts.is_on)
            .object;
  }
  return all;
}

void StartDecisions(LoadedExecutor& self, int level) {
  Unlocked([&] {
    self.local().StartDecisions(level > 1 ? exec::DecisionLevel::kCells
                                          : exec::DecisionLevel::kLoads);
  });
}

std::pair<nb::bytes, int64_t> TakeDecisions(LoadedExecutor& self, bool ends) {
  const exec::RecordedDecisions taken = Unlocked([&] { return self.local().TakeDecisions(ends); });
  return {nb::bytes(taken.lines.data(), taken.lines.size()), taken.num_dropped};
}

void BindTrace(nb::module_& module, nb::class_<LoadedExecutor>& executor) {
  nb::class_<RecordedTrace>(module, "RecordedTrace", "A finished recording of an executor.")
      .def_ro("origin_ns", &RecordedTrace::origin_ns, "When it began, by the monotonic clock.")
      .def_ro("duration_ns", &RecordedTrace::duration_ns, "How long it took.")
      .def_ro("num_dropped", &RecordedTrace::num_dropped, "Older requests that are not in it.")
      .def_ro("num_unfinished", &RecordedTrace::num_unfinished, "Requests that have not ended.")
      .def_ro("events", &RecordedTrace::event_records,
              "Each instruction of each request: request, slot, queue, instruction, is_done, "
              "wait_ns, start_ns, finish_ns and core; see `src/exec/trace/trace.h`.")
      .def_ro("requests", &RecordedTrace::request_records,
              "Each request: request (its number), slot, has_failed, start_ns, finish_ns "
              "and is_serial.")
      .def("chrome_trace", &ChromeTrace, nb::arg("step_names") = nb::tuple(), R"(
Return it as text in Chrome's trace-event format, which Perfetto shows.

Parameters
----------
step_names
    Of the plan's steps; without them slices have the names of their kernels.
)");
  executor
      .def("start_trace", &StartTrace, nb::arg("max_requests") = nb::none(), R"(
Record all requests that begin from now on, on all ranks.

Those of `run_timed`, `profile_cpu`, `profile_runs` and `sample` are not among them.

Parameters
----------
max_requests
    How many are kept, the last ones; None: as many as 8 MiB hold. As many as can be in
    flight are kept at least.

Raises
------
ExecutionError
    It records already, `max_requests` is out of range, or memory is short.
)")
      .def("stop_trace", &StopTrace, nb::arg("timeout_s") = nb::none(), nb::keep_alive<0, 1>(), R"(
End the recording, once the requests in it have ended, or after `timeout_s`.

Of several ranks it is of all, by the clock of this one; what other ranks answer is awaited.

Raises
------
ExecutionError
    Nothing is recorded.
)");
}

}  // namespace

void BindRecording(nb::module_& module, nb::class_<LoadedExecutor>& executor) {
  BindTrace(module, executor);
  executor
      .def_prop_ro("routers", &DescribeRouters, "The routers of the program; empty if it has none.")
      .def("predict_routes", &PredictRoutes, nb::arg("routes"), R"(
Predict exactly these active branches of routers, from the next request on.

Raises
------
ExecutionError
    There is no such router or branch; nothing is changed.
)")
      .def("prediction_counts", &DescribePredictions, R"(
Return how predictions of each router came out so far.

Raises
------
ExecutionError
    The program has no routers.
)")
      .def("start_decisions", &StartDecisions, nb::arg("level"), R"(
Record the decisions of all requests that end from now on, in memory of 16 MiB.

Parameters
----------
level
    1: loads of branches; 2: also where each cell goes.

Raises
------
ExecutionError
    It records already, the program has no routers, or cells are not known.
)")
      .def("take_decisions", &TakeDecisions, nb::kw_only(), nb::arg("ends"), R"(
Return lines of JSON recorded since the last call, and how many requests had no room.

Raises
------
ExecutionError
    Nothing is recorded.
)");
}

}  // namespace heteroplace::bind
