// Searches: over plans, and over mappings in one fixed order.
#include "search/search.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bind/bind.h"
#include "bind/plans.h"
#include "bind/poll_python.h"
#include "search/mapping_search.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using Report = Instance<"heteroplace.native.core_search.SearchReport">;
using MappingReport = Instance<"heteroplace.native.core_search.MappingReport">;
using Stall = Instance<"heteroplace.native.core_search.Stall">;
using Rule = Instance<"heteroplace.native.core_search.Rule">;
/*! \brief A native plan, or the steps of a plan. */
using AnyPlan = Instance<"heteroplace.native.core_search.AnyPlan">;

/*! \brief The placement and the order of the tasks of each plan; the latter is not always
 * topological: in a plan that cannot be run, a task may start before its tensors are there. */
std::vector<search::InitialSolution> ToSolutions(const model::Problem& problem,
                                                 const std::vector<AnyPlan>& plans) {
  std::vector<search::InitialSolution> solutions;
  for (const AnyPlan& plan : plans) {
    const auto [device, order] = nb::cast<std::pair<IntSequence, IntSequence>>(
        nb::find(problem).attr("solution_of")(plan.object));
    solutions.push_back({ToDevices(problem, device), ToNarrow(order)});
    if (solutions.back().order.size() != static_cast<size_t>(problem.num_tasks)) {
      throw Error(ErrorKind::kGraph, "an order does not cover the tasks");
    }
  }
  return solutions;
}

class PlanSearch {
 public:
  PlanSearch(const model::Problem& problem, const std::vector<AnyPlan>& initial,
             std::optional<int64_t> max_evaluations, uint64_t seed, int64_t patience, int threads,
             const std::vector<IntSequence>& placements, std::vector<double> prices,
             bool finds_bound)
      : problem_(problem) {
    std::vector<search::InitialSolution> solutions = ToSolutions(problem, initial);
    for (const IntSequence& device : placements) {
      solutions.push_back({ToDevices(problem, device), {}});
    }
    if (solutions.empty()) {
      throw Error(ErrorKind::kGraph, "a search needs at least one initial solution");
    }
    if (!prices.empty() && prices.size() != static_cast<size_t>(problem.num_memories)) {
      throw Error(ErrorKind::kGraph, "prices do not match the memories");
    }
    search_ = std::make_unique<search::PlanSearch>(
        problem, std::move(solutions),
        search::SearchOptions{max_evaluations.value_or(-1), seed, patience, threads,
                              std::move(prices), finds_bound});
  }

  Report Run(double time_limit_s, int64_t bound_ns, const std::optional<Stall>& stall,
             const std::vector<AnyPlan>& plans,
             const Progress<int64_t, int64_t, int64_t>& progress) {
    const std::vector<search::InitialSolution> solutions = ToSolutions(problem_, plans);
    search::SearchTurn turn{std::max(0.0, time_limit_s), bound_ns, 0.0, 0.0};
    if (stall) {
      turn.stall_share = stall->Get<double>("share");
      turn.stall_s = stall->Get<double>("least_s");
    }
    const search::SearchHook hook = [&progress](int64_t evaluations, int64_t best, int64_t bound) {
      return PollPython(progress, evaluations, best, bound);
    };
    search::SearchOutcome found = Unlocked([&] { return search_->Run(turn, solutions, hook); });
    return Report::Of(ToPlan(problem_, found.plan), found.evaluations, found.was_stopped,
                      nb::tuple(nb::cast(found.price)), found.bound_ns, found.can_go_on,
                      found.stalled_s);
  }

 private:
  const model::Problem& problem_;
  std::unique_ptr<search::PlanSearch> search_;
};

MappingReport SearchMappings(const model::Problem& problem, const IntSequence& initial,
                             const IntSequence& order, const Rule& rule,
                             std::optional<int64_t> max_evaluations, double time_limit_s,
                             uint64_t seed, int64_t bound_ns,
                             const Progress<int64_t, int64_t>& progress) {
  const std::vector<int> device = ToDevices(problem, initial), tasks = ToOrder(problem, order);
  const search::MappingOptions options{nb::cast<std::string>(rule.object) == "evolution"
                                           ? search::MappingRule::kEvolution
                                           : search::MappingRule::kAnnealing,
                                       max_evaluations.value_or(-1), time_limit_s, seed, bound_ns};
  const search::MappingHook hook = [&progress](int64_t evaluations, int64_t best) {
    return PollPython(progress, evaluations, best);
  };
  const search::MappingOutcome found =
      Unlocked([&] { return search::SearchMapping(problem, device, tasks, options, hook); });
  return MappingReport::Of(ToTuple(found.device), found.evaluations, found.was_stopped);
}

}  // namespace

void BindSearch(nb::module_& module) {
  nb::class_<PlanSearch>(module, "PlanSearch", R"(
A search in several turns; see `src/search/search.h`. Not thread-safe.

One that stalled goes on as if nothing had been between, unless it is given plans.
)")
      .def(nb::init<const model::Problem&, const std::vector<AnyPlan>&, std::optional<int64_t>,
                    uint64_t, int64_t, int, const std::vector<IntSequence>&, std::vector<double>,
                    bool>(),
           nb::arg("native"), nb::arg("initial"), nb::kw_only(), nb::arg("max_evaluations").none(),
           nb::arg("seed"), nb::arg("patience") = 0, nb::arg("threads") = 1,
           nb::arg("placements") = nb::tuple(), nb::arg("prices") = nb::tuple(),
           nb::arg("finds_bound") = true, nb::keep_alive<1, 2>(),
           "See `search_plans` for the parameters; budgets are of all turns together.")
      .def("run", &PlanSearch::Run, nb::arg("time_limit_s"), nb::kw_only(), nb::arg("bound_ns") = 0,
           nb::arg("stall") = nb::none(), nb::arg("plans") = nb::tuple(),
           nb::arg("progress") = nb::none(), R"(
Search on for one turn; return the best plan of all turns.

Parameters
----------
stall
    None: the turn does not end for want of gains.
plans
    Found elsewhere since the turn before.
)");
  module.def("search_mapping", &SearchMappings, nb::arg("native"), nb::arg("initial"),
             nb::arg("order"), nb::kw_only(), nb::arg("rule"), nb::arg("max_evaluations").none(),
             nb::arg("time_limit_s"), nb::arg("seed"), nb::arg("bound_ns") = 0,
             nb::arg("progress") = nb::none(), R"(
Improve a mapping; its value is the makespan when tasks go in `order`.

Parameters
----------
initial
    Device of each task, [num_tasks]: allowed ones, one for each colocation group.
order
    A topological order of the tasks, [num_tasks].
max_evaluations
    Number of mappings tried, the initial one included; None: no limit. With it, equal seeds
    give equal results unless the time runs out.
bound_ns
    A makespan that cannot be beaten; the search ends when it is reached.
progress
    Called about 20 times a second with (evaluations, best makespan in ns).
)");
}

}  // namespace heteroplace::bind
