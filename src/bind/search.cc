// Searches: over plans, and over mappings in one fixed order.
#include "search/search.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "bind/bind.h"
#include "bind/plans.h"
#include "bind/poll_python.h"
#include "search/mapping_search.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using Solutions = std::vector<std::pair<Ints, Ints>>;

std::tuple<PlanTuple, int64_t, bool, std::vector<double>, int64_t> SearchPlans(
    const model::Problem& problem, const Solutions& initial, int64_t max_evaluations,
    double time_limit_s, uint64_t seed, int64_t bound_ns, int64_t patience, int threads,
    std::vector<double> prices, bool finds_bound,
    const Progress<int64_t, int64_t, int64_t>& progress) {
  std::vector<search::InitialSolution> solutions;
  for (const auto& [device, order] : initial) {
    // Not always topological: in a plan that cannot be run, a task may start before its tensors
    // are.
    std::vector<int> tasks = ToNarrow(order);
    if (!tasks.empty() && tasks.size() != static_cast<size_t>(problem.num_tasks)) {
      throw Error(ErrorKind::kGraph, "an order does not cover the tasks");
    }
    solutions.push_back({ToDevices(problem, device), std::move(tasks)});
  }
  if (solutions.empty()) {
    throw Error(ErrorKind::kGraph, "a search needs at least one initial solution");
  }
  if (!prices.empty() && prices.size() != static_cast<size_t>(problem.num_memories)) {
    throw Error(ErrorKind::kGraph, "prices do not match the memories");
  }
  const search::SearchOptions options{max_evaluations,   time_limit_s, seed,
                                      bound_ns,          patience,     threads,
                                      std::move(prices), finds_bound};
  const search::SearchHook hook = [&progress](int64_t evaluations, int64_t best, int64_t bound) {
    return PollPython(progress, evaluations, best, bound);
  };
  search::SearchOutcome found =
      Unlocked([&] { return search::Search(problem, solutions, options, hook); });
  return {ToTuple(problem, found.plan), found.evaluations, found.was_stopped,
          std::move(found.price), found.bound_ns};
}

std::tuple<NumpyInts, int64_t, bool> SearchMappings(const model::Problem& problem,
                                                    const Ints& initial, const Ints& order,
                                                    int rule, int64_t max_evaluations,
                                                    double time_limit_s, uint64_t seed,
                                                    int64_t bound_ns,
                                                    const Progress<int64_t, int64_t>& progress) {
  const std::vector<int> device = ToDevices(problem, initial), tasks = ToOrder(problem, order);
  const search::MappingOptions options{static_cast<search::MappingRule>(rule), max_evaluations,
                                       time_limit_s, seed, bound_ns};
  const search::MappingHook hook = [&progress](int64_t evaluations, int64_t best) {
    return PollPython(progress, evaluations, best);
  };
  const search::MappingOutcome found =
      Unlocked([&] { return search::SearchMapping(problem, device, tasks, options, hook); });
  return {Widen(found.device), found.evaluations, found.was_stopped};
}

std::pair<NumpyInts, NumpyInts> ValuesOf(const model::Problem& problem, const Ints& devices,
                                         int num_mappings, const Ints& order) {
  const std::vector<int> mappings = ToDevices(problem, devices, static_cast<size_t>(num_mappings));
  const std::vector<int> tasks = ToOrder(problem, order);
  std::vector<int64_t> makespan_ns, violation;
  for (const list::Value& value :
       Unlocked([&] { return search::EvaluateMappings(problem, mappings, num_mappings, tasks); })) {
    makespan_ns.push_back(value.makespan_ns);
    violation.push_back(value.violation);
  }
  return {ToNumpy(std::move(makespan_ns)), ToNumpy(std::move(violation))};
}

}  // namespace

void BindSearch(nb::module_& module) {
  module.def("search", &SearchPlans, nb::arg("problem"), nb::arg("initial"), nb::kw_only(),
             nb::arg("max_evaluations"), nb::arg("time_limit_s"), nb::arg("seed"),
             nb::arg("bound_ns"), nb::arg("patience"), nb::arg("threads"), nb::arg("prices"),
             nb::arg("finds_bound"), nb::arg("progress").none(),
             "Improve plans; see src/search/search.h. `initial`: (devices [num_tasks], order "
             "[num_tasks] or empty) of each; `prices` [num_memories], or empty. Returns (plan, "
             "evaluations, whether it was stopped, prices, bound in ns).");
  module.def("search_mapping", &SearchMappings, nb::arg("problem"), nb::arg("initial"),
             nb::arg("order"), nb::kw_only(), nb::arg("rule"), nb::arg("max_evaluations"),
             nb::arg("time_limit_s"), nb::arg("seed"), nb::arg("bound_ns"),
             nb::arg("progress").none(),
             "Improve a mapping [num_tasks] in one order; see src/search/mapping_search.h. Returns "
             "(devices [num_tasks], evaluations, whether it was stopped).");
  module.def("evaluate_mappings", &ValuesOf, nb::arg("problem"), nb::arg("devices"),
             nb::arg("num_mappings"), nb::arg("order"),
             "(makespan in ns [num_mappings], violation [num_mappings]) of some mappings "
             "[num_mappings * num_tasks] in one order.");
}

}  // namespace heteroplace::bind
