// Route decisions of an executor's requests: predictions, and what is recorded.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "exec/engine/executor.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief (name, cells, branches) of every router, those of one name once. */
std::vector<std::tuple<std::string, int64_t, int64_t>> DescribeRouters(
    const exec::Executor& executor) {
  std::vector<std::tuple<std::string, int64_t, int64_t>> rows;
  const std::vector<exec::Router>& routers = executor.program().routers;
  for (size_t r = 0; r < routers.size(); ++r) {
    if (routers[r].decision != static_cast<int32_t>(r)) continue;
    rows.emplace_back(routers[r].name, routers[r].num_cells, routers[r].num_branches());
  }
  return rows;
}

void Predict(exec::Executor& executor,
             const std::vector<std::pair<std::string, std::vector<int64_t>>>& sets) {
  std::vector<exec::PredictedBranches> all;
  for (const auto& [router, branches] : sets) all.push_back({router, branches});
  Unlocked([&] { executor.Predict(all); });
}

std::vector<std::tuple<std::string, int64_t, int64_t, int64_t, bool>> Predictions(
    exec::Executor& executor) {
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t, bool>> rows;
  for (const auto& [router, counts] : Unlocked([&] { return executor.PredictionsOf(); })) {
    rows.emplace_back(router, counts.num_requests, counts.num_exact, counts.num_wider,
                      counts.is_on);
  }
  return rows;
}

void Start(exec::Executor& executor, bool has_cells) {
  const exec::DecisionLevel level =
      has_cells ? exec::DecisionLevel::kCells : exec::DecisionLevel::kLoads;
  Unlocked([&] { executor.StartDecisions(level); });
}

std::pair<nb::bytes, int64_t> Take(exec::Executor& executor, bool ends) {
  const exec::RecordedDecisions taken = Unlocked([&] { return executor.TakeDecisions(ends); });
  return {nb::bytes(taken.lines.data(), taken.lines.size()), taken.num_dropped};
}

}  // namespace

void BindRoutes(nb::module_& module) {
  module
      .def("routers", &DescribeRouters, nb::arg("executor"),
           "(name, number of cells, number of branches) of each router.")
      .def("predict_routes", &Predict, nb::arg("executor"), nb::arg("sets"),
           "Predict the active branches of routers, from the next request on.")
      .def("route_predictions", &Predictions, nb::arg("executor"),
           "(router, requests, exact ones, wider ones, whether it is predicted) of each.")
      .def("start_decisions", &Start, nb::arg("executor"), nb::arg("has_cells"),
           "Record route decisions; see src/exec/requests/decisions.h.")
      .def(
          "copied_bytes", [](const exec::Executor& executor) { return executor.CopiedBytes(); },
          nb::arg("executor"), "(step, bytes so far) of each copy, queue by queue.")
      .def("take_decisions", &Take, nb::arg("executor"), nb::arg("ends"),
           "Lines of JSON since the last call, and how many requests had no room.");
}

}  // namespace heteroplace::bind
