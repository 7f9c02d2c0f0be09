#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "bounds/lagrangian.h"

namespace nb = nanobind;

namespace heteroplace::bind {

void BindBounds(nb::module_& module) {
  module.def(
      "lagrangian_bound",
      [](const model::Problem& problem, std::vector<double> price, int rounds, int iterations,
         double time_limit_s, int64_t max_work, int64_t target_ns, int threads, int num_samples) {
        const bounds::BoundOptions options{rounds,    iterations, time_limit_s, max_work,
                                           target_ns, threads,    num_samples};

        bounds::BoundOutcome outcome;
        {
          nb::gil_scoped_release release;
          outcome = bounds::LagrangianBound(problem, std::move(price), options, [] {
            nb::gil_scoped_acquire acquire;
            return PyErr_CheckSignals() != 0;
          });
        }
        if (PyErr_Occurred() != nullptr) nb::raise_python_error();
        return nb::make_tuple(outcome.bound_ns, outcome.price, outcome.samples);
      },
      nb::arg("problem"), nb::arg("price"), nb::kw_only(), nb::arg("rounds"), nb::arg("iterations"),
      nb::arg("time_limit_s"), nb::arg("max_work") = 0, nb::arg("target_ns"), nb::arg("threads"),
      nb::arg("num_samples") = 0);
}

}  // namespace heteroplace::bind
