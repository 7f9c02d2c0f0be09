// The Lagrangian bound.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "bind/bind.h"
#include "bind/values.h"
#include "bounds/lagrangian.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using LagrangianBound = Instance<"heteroplace.native.core_bounds.LagrangianBound">;

LagrangianBound Bound(const model::Problem& problem, std::vector<double> prices, int rounds,
                      int iterations, double time_limit_s, int64_t max_work, int64_t target_ns,
                      int threads, int num_samples, bool fixed_prices) {
  if (rounds < 1 || iterations < 1) {
    throw nb::value_error(("rounds and iterations must be >= 1, got " + std::to_string(rounds) +
                           " and " + std::to_string(iterations))
                              .c_str());
  }
  const bool is_whole = prices.size() == static_cast<size_t>(problem.num_memories);
  if ((!prices.empty() && !is_whole) ||
      std::ranges::any_of(prices, [](double price) { return price < 0; })) {
    const std::string given = nb::cast<std::string>(nb::repr(nb::cast(prices)));
    throw nb::value_error(("prices must be " + std::to_string(problem.num_memories) +
                           " numbers >= 0, one per memory, or empty; got " + given)
                              .c_str());
  }
  const bounds::BoundOptions options{rounds,    iterations, time_limit_s, max_work,
                                     target_ns, threads,    num_samples,  fixed_prices};
  const auto is_stopped = [] {
    const WithGil locked;
    return PyErr_CheckSignals() != 0;
  };
  bounds::BoundOutcome found = Unlocked(
      [&] { return bounds::LagrangianBound(problem, std::move(prices), options, is_stopped); });
  if (PyErr_Occurred() != nullptr) nb::raise_python_error();
  nb::list samples;
  for (const std::vector<int>& placement : found.samples) samples.append(ToTuple(placement));
  return LagrangianBound::Of(found.bound_ns, ToTuple(found.price), nb::tuple(samples));
}

}  // namespace

void BindBounds(nb::module_& module) {
  module.def("lagrangian_bound", &Bound, nb::arg("native"), nb::arg("prices") = nb::tuple(),
             nb::kw_only(), nb::arg("rounds") = 12, nb::arg("iterations") = 120,
             nb::arg("time_limit_s") = 10.0, nb::arg("max_work") = 0, nb::arg("target_ns") = 0,
             nb::arg("threads") = 1, nb::arg("num_samples") = 0, nb::arg("fixed_prices") = false,
             R"(
Return the largest bound found by raising memory prices; see `src/bounds/lagrangian.h`.

Parameters
----------
prices
    Prices to begin with, [num_memories]; empty: zeros.
rounds
    Steps of the prices; the first is at `prices` themselves.
iterations
    Subgradient steps for each pair of devices of each distinct module.
time_limit_s
    A bound that ends by it is not reproducible.
max_work
    How often tasks are looked at, some 50 million times a second; 0: no limit. Unlike the time
    it gives the same bound on every machine.
target_ns
    A known makespan, which sets the length of the steps; 0: none is known.
num_samples
    Placements to return.
fixed_prices
    The bound at `prices`, and no better one. It may be negative: as one of several terms that
    share a memory. Without samples nothing is proven.

Raises
------
ValueError
    The number of prices is not that of the memories, or one is negative; or there are less
    than one round or iteration.
)");
}

}  // namespace heteroplace::bind
