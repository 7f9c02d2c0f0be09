#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bind/poll_python.h"
#include "graph/topo.h"
#include "list/batch_compositions.h"
#include "list/fastest_mapping.h"
#include "search/mapping_search.h"
#include "support/error.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief Ids from numpy; there must be `rows` times as many as tasks. */
std::vector<int> ToIds(const model::Problem& problem, const Ints& array, size_t rows,
                       const char* what) {
  const size_t expected = rows * static_cast<size_t>(problem.num_tasks);
  if (array.size() != expected) {
    throw Error(ErrorKind::kGraph, std::string(what) + " has " + std::to_string(array.size()) +
                                       " entries, expected " + std::to_string(expected));
  }
  return ToNarrow(array);
}

nb::tuple SearchMappings(const model::Problem& problem, const Ints& start, const Ints& order,
                         int rule, int64_t max_evaluations, double time_limit_s, uint64_t seed,
                         int64_t bound_ns, const std::optional<nb::callable>& progress) {
  const std::vector<int> device = ToIds(problem, start, 1, "the start");
  const std::vector<int> tasks = ToIds(problem, order, 1, "the order");
  const search::MappingOptions options{static_cast<search::MappingRule>(rule), max_evaluations,
                                       time_limit_s, seed, bound_ns};
  const search::MappingHook hook = [&progress](int64_t evaluations, int64_t best) {
    return PollPython(progress, evaluations, best);
  };
  search::MappingOutcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = search::SearchMapping(problem, device, tasks, options, hook);
  }
  return nb::make_tuple(outcome.device, outcome.evaluations, outcome.was_stopped);
}

/*! \brief (makespan, violation) of each mapping, flat. */
std::vector<int64_t> ValuesOf(const model::Problem& problem, const Ints& devices, int num_mappings,
                              const Ints& order) {
  const std::vector<int> mappings =
      ToIds(problem, devices, static_cast<size_t>(num_mappings), "the mappings");
  const std::vector<int> tasks = ToIds(problem, order, 1, "the order");
  std::vector<int64_t> flat;
  nb::gil_scoped_release release;
  for (const list::Value& value :
       search::EvaluateMappings(problem, mappings, num_mappings, tasks)) {
    flat.push_back(value.makespan_ns);
    flat.push_back(value.violation);
  }
  return flat;
}

}  // namespace

void BindMappingSearch(nb::module_& module) {
  module.def("search_mapping", &SearchMappings, nb::arg("problem"), nb::arg("start"),
             nb::arg("order"), nb::arg("rule"), nb::arg("max_evaluations"), nb::arg("time_limit_s"),
             nb::arg("seed"), nb::arg("bound_ns"), nb::arg("progress").none());
  module.def("evaluate_mappings", &ValuesOf);
  module.def("breadth_first_order", [](const model::Problem& problem) {
    return graph::BreadthFirstOrder(graph::Dag(problem.successors));
  });
  module.def("depth_first_order", [](const model::Problem& problem) {
    return graph::DepthFirstOrder(graph::Dag(problem.successors));
  });
  module.def("fastest_mapping", [](const model::Problem& problem, const Ints& order) {
    return list::FastestMapping(problem, ToIds(problem, order, 1, "the order"));
  });
  module.def("upward_ranks",
             [](const model::Problem& problem) { return list::BatchRanks(problem, 1); });
}

}  // namespace heteroplace::bind
