// Steady-state throughput: loads of a placement, the priced relaxation, the local search.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "model/problem.h"
#include "support/error.h"
#include "throughput/improve.h"
#include "throughput/loads.h"
#include "throughput/relaxation.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using Ints = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/*! \brief Hands a vector to numpy without copying it. */
template <typename T>
nb::ndarray<nb::numpy, T> ToNumpy(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));  // Deleted by the capsule.
  nb::capsule owner(owned, [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return nb::ndarray<nb::numpy, T>(owned->data(), {owned->size()}, owner);
}

nb::ndarray<nb::numpy, int64_t> ToNumpy(const std::vector<int>& values) {
  return ToNumpy(std::vector<int64_t>(values.begin(), values.end()));
}

std::vector<int> ToPlacement(const model::Problem& problem, const Ints& device) {
  if (device.size() != static_cast<size_t>(problem.num_tasks)) {
    throw Error(ErrorKind::kGraph, "a placement does not cover the tasks");
  }
  return {device.data(), device.data() + device.size()};
}

nb::tuple PlacementLoads(const model::Problem& problem, const Ints& device) {
  const throughput::Loads loads(problem, ToPlacement(problem, device));
  return nb::make_tuple(ToNumpy(std::vector<int64_t>(loads.busy_ns())),
                        ToNumpy(std::vector<int64_t>(loads.used_bytes())), loads.num_unreachable());
}

nb::tuple EvaluateRelaxation(throughput::Relaxation& relaxation, const Doubles& prices) {
  throughput::RelaxedValue found;
  {
    nb::gil_scoped_release release;
    found = relaxation.Evaluate({prices.data(), prices.data() + prices.size()});
  }
  return nb::make_tuple(found.value, ToNumpy(std::move(found.totals)));
}

std::vector<std::vector<int>> ToPlacements(const model::Problem& problem,
                                           const std::vector<Ints>& arrays) {
  std::vector<std::vector<int>> placements;
  for (const Ints& device : arrays) placements.push_back(ToPlacement(problem, device));
  return placements;
}

/*! \brief Asks Python for Ctrl-C and reports progress; true ends the search. */
bool PollPython(const std::optional<nb::callable>& progress, int64_t moves, int64_t best_ns) {
  nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    // An interrupt ends the search, which still returns its best; any other error is passed on.
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) nb::raise_python_error();
    PyErr_Clear();
    return true;
  }
  return progress && nb::cast<bool>((*progress)(moves, best_ns));
}

nb::tuple ImprovePlacements(const model::Problem& problem, const std::vector<Ints>& starts,
                            const std::vector<Ints>& patterns, int64_t max_moves,
                            double time_limit_s, uint64_t seed, int threads, int64_t bound_ns,
                            const std::optional<nb::callable>& progress) {
  const std::vector<std::vector<int>> begin = ToPlacements(problem, starts);
  const std::vector<std::vector<int>> models = ToPlacements(problem, patterns);
  if (begin.empty()) throw Error(ErrorKind::kGraph, "a search needs at least one start");
  const throughput::ImproveHook hook = [&progress](int64_t moves, int64_t best_ns) {
    return PollPython(progress, moves, best_ns);
  };
  throughput::ImproveOutcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = throughput::Improve(problem, begin, models,
                                  {max_moves, time_limit_s, seed, threads, bound_ns}, hook);
  }
  return nb::make_tuple(ToNumpy(outcome.device), outcome.item_ns, outcome.violation, outcome.moves,
                        outcome.was_stopped);
}

nb::list Splits(const model::Problem& problem, int max_orders) {
  nb::list splits;
  for (const std::vector<int>& split : throughput::ContiguousSplits(problem, max_orders)) {
    splits.append(ToNumpy(split));
  }
  return splits;
}

}  // namespace

void BindThroughput(nb::module_& module) {
  module.def("placement_loads", &PlacementLoads, nb::arg("problem"), nb::arg("device"));
  module.def("improve_placements", &ImprovePlacements, nb::arg("problem"), nb::arg("starts"),
             nb::arg("patterns"), nb::arg("max_moves"), nb::arg("time_limit_s"), nb::arg("seed"),
             nb::arg("threads"), nb::arg("bound_ns"), nb::arg("progress").none());
  module.def("contiguous_splits", &Splits, nb::arg("problem"), nb::arg("max_orders"));
  nb::class_<throughput::Relaxation>(module, "Relaxation")
      .def(nb::init<const model::Problem&, int64_t>(), nb::arg("problem"), nb::arg("max_work"),
           nb::keep_alive<1, 2>(), nb::call_guard<nb::gil_scoped_release>())
      .def("evaluate", &EvaluateRelaxation, nb::arg("prices"))
      .def("placement",
           [](const throughput::Relaxation& relaxation) { return ToNumpy(relaxation.Placement()); })
      .def_prop_ro("is_exact", &throughput::Relaxation::is_exact)
      .def_prop_ro("num_eliminations", &throughput::Relaxation::num_eliminations);
}

}  // namespace heteroplace::bind
