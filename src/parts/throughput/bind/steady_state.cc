// Steady-state throughput: loads of a placement, the priced relaxation, the local search.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bind/gil.h"
#include "bind/plans.h"
#include "bind/poll_python.h"
#include "parts/throughput/bind/bind.h"
#include "parts/throughput/steady_state/ideals.h"
#include "parts/throughput/steady_state/improve.h"
#include "parts/throughput/steady_state/relaxation.h"
#include "parts/throughput/steady_state/subset_knapsack.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

std::pair<double, Numpy<double>> EvaluateRelaxation(throughput::Relaxation& relaxation,
                                                    const Doubles& prices) {
  if (prices.size() != relaxation.num_prices()) {
    throw Error(ErrorKind::kGraph, "prices do not match the resources and memories");
  }
  throughput::RelaxedValue found =
      Unlocked([&] { return relaxation.Evaluate({prices.data(), prices.data() + prices.size()}); });
  return {found.value, ToNumpy(std::move(found.totals))};
}

std::vector<std::vector<int>> ToPlacements(const model::Problem& problem,
                                           const std::vector<Ints>& arrays) {
  std::vector<std::vector<int>> placements;
  placements.reserve(arrays.size());
  for (const Ints& device : arrays) placements.push_back(ToDevices(problem, device));
  return placements;
}

std::tuple<NumpyInts, int64_t, int64_t, int64_t, bool> ImprovePlacements(
    const model::Problem& problem, const std::vector<Ints>& initial,
    const std::vector<Ints>& patterns, int64_t max_moves, double time_limit_s, uint64_t seed,
    int threads, int64_t bound_ns, const Progress<int64_t, int64_t>& progress) {
  const std::vector<std::vector<int>> solutions = ToPlacements(problem, initial);
  const std::vector<std::vector<int>> models = ToPlacements(problem, patterns);
  if (solutions.empty()) {
    throw Error(ErrorKind::kGraph, "a search needs at least one initial solution");
  }
  const throughput::ImproveHook hook = [&progress](int64_t moves, int64_t best_ns) {
    return PollPython(progress, moves, best_ns);
  };
  const throughput::ImproveOutcome found = Unlocked([&] {
    return throughput::Improve(problem, solutions, models,
                               {max_moves, time_limit_s, seed, threads, bound_ns}, hook);
  });
  return {Widen(found.device), found.item_ns, found.violation, found.moves, found.was_stopped};
}

bool HasClass(const throughput::SubsetKnapsack& knapsack, int device_class) {
  const std::vector<int>& classes = knapsack.device_class();
  return std::ranges::find(classes, device_class) != classes.end();
}

std::pair<Numpy<double>, NumpyInts> EvaluateSubsets(throughput::SubsetKnapsack& knapsack,
                                                    int device_class, const Doubles& profit,
                                                    int64_t width_ns, int count,
                                                    double price_per_ns, int at) {
  const std::vector<double> profits(profit.data(), profit.data() + profit.size());
  if (static_cast<int>(profits.size()) != knapsack.graph().num_variables || width_ns < 1 ||
      count < 1 || at < 0 || at > count || !(price_per_ns >= 0) ||
      !HasClass(knapsack, device_class)) {
    throw Error(ErrorKind::kGraph, "profits, class or buckets do not match the knapsack");
  }
  throughput::SubsetProfits found = Unlocked([&] {
    return knapsack.Evaluate(device_class, profits, {width_ns, count, price_per_ns}, at);
  });
  return {ToNumpy(std::move(found.most)), ToNumpy(std::move(found.is_chosen))};
}

std::vector<NumpyInts> Splits(const model::Problem& problem, int max_orders) {
  std::vector<NumpyInts> splits;
  for (const std::vector<int>& split : throughput::ContiguousSplits(problem, max_orders)) {
    splits.push_back(Widen(split));
  }
  return splits;
}

std::tuple<NumpyInts, int64_t, int> IdealSplitOf(const model::Problem& problem, int max_ideals,
                                                 int64_t max_stages) {
  const throughput::IdealSplit split =
      Unlocked([&] { return throughput::BestIdealSplit(problem, {max_ideals, max_stages}); });
  return {Widen(split.device), split.load_ns, split.num_ideals};
}

}  // namespace

void BindSteadyState(nb::module_& module) {
  using throughput::Relaxation;
  module.def("improve_placements", &ImprovePlacements, nb::arg("problem"), nb::arg("initial"),
             nb::arg("patterns"), nb::kw_only(), nb::arg("max_moves"), nb::arg("time_limit_s"),
             nb::arg("seed"), nb::arg("threads"), nb::arg("bound_ns"), nb::arg("progress").none(),
             "Improve placements [num_tasks] for throughput; see "
             "src/parts/throughput/steady_state/improve.h. Returns "
             "(devices [num_tasks], ns per item, violation, moves, whether it was stopped).");
  module.def("contiguous_splits", &Splits, nb::arg("problem"), nb::arg("max_orders"),
             "Placements [num_tasks] that split the order of tasks; see "
             "src/parts/throughput/steady_state/improve.h.");
  module.def("ideal_split", &IdealSplitOf, nb::arg("problem"), nb::arg("max_ideals"),
             nb::arg("max_stages"),
             "(devices [num_tasks] or nothing, largest load in ns, ideals) of the best split into "
             "stages; see src/parts/throughput/steady_state/ideals.h.");
  nb::class_<Relaxation>(
      module, "Relaxation",
      "Least priced cost over all placements; see src/parts/throughput/steady_state/relaxation.h.")
      .def(nb::init<const model::Problem&, int64_t>(), nb::arg("problem"), nb::arg("max_work"),
           nb::keep_alive<1, 2>(), nb::call_guard<WithoutGil>(),
           "Plan the eliminations; `max_work`: table entries read by one evaluation.")
      .def("evaluate", &EvaluateRelaxation, nb::arg("prices"),
           "(least cost, what its minimiser uses) at prices; both [num_resources + num_memories].")
      .def(
          "placement", [](const Relaxation& relaxation) { return Widen(relaxation.Placement()); },
          "Devices [num_tasks] of the latest minimiser.")
      .def_prop_ro("is_exact", &Relaxation::is_exact, "Whether minima are exact.")
      .def_prop_ro("num_eliminations", &Relaxation::num_eliminations, "Distinct steps.");
  using throughput::SubsetKnapsack;
  nb::class_<SubsetKnapsack>(module, "SubsetKnapsack",
                             "What one device can hold within a load; see "
                             "src/parts/throughput/steady_state/subset_knapsack.h.")
      .def(nb::init<const model::Problem&, int64_t>(), nb::arg("problem"), nb::arg("max_states"),
           nb::call_guard<WithoutGil>(), "Order the variables; states of all steps, at most.")
      .def("evaluate", &EvaluateSubsets, nb::arg("device_class"), nb::arg("profit"), nb::kw_only(),
           nb::arg("width_ns"), nb::arg("count"), nb::arg("price_per_ns"), nb::arg("at"),
           "(most profit within each load [count + 1], subset [num_variables] of the load `at`).")
      .def(
          "run_ns",
          [](const SubsetKnapsack& knapsack, int device_class) {
            if (!HasClass(knapsack, device_class)) {
              throw Error(ErrorKind::kGraph, "no device has class " + std::to_string(device_class));
            }
            return Widen(knapsack.run_ns(device_class));
          },
          nb::arg("device_class"), "Run times [num_variables] on a device of a class.")
      .def(
          "device_classes",
          [](const SubsetKnapsack& knapsack) { return Widen(knapsack.device_class()); },
          "Classes [num_devices] of devices with equal times.")
      .def(
          "variables",
          [](const SubsetKnapsack& knapsack) { return Widen(knapsack.graph().variable); },
          "The variable of each task [num_tasks].")
      .def_prop_ro(
          "num_states", [](const SubsetKnapsack& knapsack) { return knapsack.order().num_states; },
          "Of all steps.")
      .def_prop_ro("has_copies", &SubsetKnapsack::has_copies,
                   "Whether copies are load of a device.")
      .def_prop_ro(
          "is_exact", [](const SubsetKnapsack& knapsack) { return knapsack.order().is_exact; },
          "Whether no hyperedge was left out.");
}

}  // namespace heteroplace::bind
