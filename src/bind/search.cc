// Searches: over plans, and over mappings in one fixed order.
#include "search/search.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
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

using SearchTuple =
    std::tuple<PlanObject, int64_t, bool, std::vector<double>, int64_t, bool, double>;

std::vector<search::InitialSolution> ToSolutions(const model::Problem& problem,
                                                 const Solutions& plans) {
  std::vector<search::InitialSolution> solutions;
  for (const auto& [device, order] : plans) {
    // Not always topological: in a plan that cannot be run, a task may start before its tensors
    // are.
    std::vector<int> tasks = ToNarrow(order);
    if (!tasks.empty() && tasks.size() != static_cast<size_t>(problem.num_tasks)) {
      throw Error(ErrorKind::kGraph, "an order does not cover the tasks");
    }
    solutions.push_back({ToDevices(problem, device), std::move(tasks)});
  }
  return solutions;
}

class PlanSearch {
 public:
  PlanSearch(const model::Problem& problem, const Solutions& initial, int64_t max_evaluations,
             uint64_t seed, int64_t patience, int threads, std::vector<double> prices,
             bool finds_bound)
      : problem_(problem) {
    std::vector<search::InitialSolution> solutions = ToSolutions(problem, initial);
    if (solutions.empty()) {
      throw Error(ErrorKind::kGraph, "a search needs at least one initial solution");
    }
    if (!prices.empty() && prices.size() != static_cast<size_t>(problem.num_memories)) {
      throw Error(ErrorKind::kGraph, "prices do not match the memories");
    }
    search_ = std::make_unique<search::PlanSearch>(
        problem, std::move(solutions),
        search::SearchOptions{max_evaluations, seed, patience, threads, std::move(prices),
                              finds_bound});
  }

  SearchTuple Run(const Solutions& plans, double time_limit_s, int64_t bound_ns, double stall_share,
                  double stall_s, const Progress<int64_t, int64_t, int64_t>& progress) {
    const std::vector<search::InitialSolution> solutions = ToSolutions(problem_, plans);
    const search::SearchTurn turn{time_limit_s, bound_ns, stall_share, stall_s};
    const search::SearchHook hook = [&progress](int64_t evaluations, int64_t best, int64_t bound) {
      return PollPython(progress, evaluations, best, bound);
    };
    search::SearchOutcome found = Unlocked([&] { return search_->Run(turn, solutions, hook); });
    return {ToPlan(problem_, found.plan),
            found.evaluations,
            found.was_stopped,
            std::move(found.price),
            found.bound_ns,
            found.can_go_on,
            found.stalled_s};
  }

 private:
  const model::Problem& problem_;
  std::unique_ptr<search::PlanSearch> search_;
};

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

}  // namespace

void BindSearch(nb::module_& module) {
  nb::class_<PlanSearch>(module, "PlanSearch", "See src/search/search.h.")
      .def(nb::init<const model::Problem&, const Solutions&, int64_t, uint64_t, int64_t, int,
                    std::vector<double>, bool>(),
           nb::arg("problem"), nb::arg("initial"), nb::kw_only(), nb::arg("max_evaluations"),
           nb::arg("seed"), nb::arg("patience"), nb::arg("threads"), nb::arg("prices"),
           nb::arg("finds_bound"), nb::keep_alive<1, 2>(),
           "`initial`: (devices [num_tasks], order [num_tasks] or empty) of each; `prices` "
           "[num_memories], or empty.")
      .def("run", &PlanSearch::Run, nb::arg("plans"), nb::kw_only(), nb::arg("time_limit_s"),
           nb::arg("bound_ns"), nb::arg("stall_share"), nb::arg("stall_s"),
           nb::arg("progress").none(),
           "One turn. `plans`: like `initial`, found elsewhere meanwhile. Returns (plan, "
           "evaluations, whether it was stopped, prices, bound in ns, whether it can go on, "
           "seconds without gain).");
  module.def("search_mapping", &SearchMappings, nb::arg("problem"), nb::arg("initial"),
             nb::arg("order"), nb::kw_only(), nb::arg("rule"), nb::arg("max_evaluations"),
             nb::arg("time_limit_s"), nb::arg("seed"), nb::arg("bound_ns"),
             nb::arg("progress").none(),
             "Improve a mapping [num_tasks] in one order; see src/search/mapping_search.h. Returns "
             "(devices [num_tasks], evaluations, whether it was stopped).");
}

}  // namespace heteroplace::bind
