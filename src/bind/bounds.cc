// The Lagrangian bound.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bounds/lagrangian.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

std::tuple<int64_t, std::vector<double>, std::vector<std::vector<int>>> Bound(
    const model::Problem& problem, std::vector<double> prices, int rounds, int iterations,
    double time_limit_s, int64_t max_work, int64_t target_ns, int threads, int num_samples) {
  if (!prices.empty() && prices.size() != static_cast<size_t>(problem.num_memories)) {
    throw Error(ErrorKind::kGraph, "prices do not match the memories");
  }
  const bounds::BoundOptions options{rounds,    iterations, time_limit_s, max_work,
                                     target_ns, threads,    num_samples};
  const auto is_stopped = [] {
    const WithGil locked;
    return PyErr_CheckSignals() != 0;
  };
  bounds::BoundOutcome found = Unlocked(
      [&] { return bounds::LagrangianBound(problem, std::move(prices), options, is_stopped); });
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  return {found.bound_ns, std::move(found.price), std::move(found.samples)};
}

}  // namespace

void BindBounds(nb::module_& module) {
  module.def(
      "lagrangian_bound", &Bound, nb::arg("problem"), nb::arg("prices"), nb::kw_only(),
      nb::arg("rounds"), nb::arg("iterations"), nb::arg("time_limit_s"), nb::arg("max_work"),
      nb::arg("target_ns"), nb::arg("threads"), nb::arg("num_samples"),
      "Lower bound on the makespan; see src/bounds/lagrangian.h. `prices` [num_memories], or "
      "empty. Returns (bound in ns, prices, placements that its relaxed plans look like).");
}

}  // namespace heteroplace::bind
