#include "model/problem.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <numeric>
#include <optional>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bind/poll_python.h"
#include "list/evaluate.h"
#include "list/heft.h"
#include "list/list_schedule.h"
#include "list/what_if.h"
#include "search/search.h"
#include "support/error.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief (steps [num_steps][4] of kind, subject, place, src; makespan of the plan). */
nb::tuple ToTuple(const model::Problem& problem, const model::NativePlan& plan) {
  std::vector<int64_t> rows;
  for (const model::Step& step : model::ToSteps(problem, plan).list) {
    rows.insert(rows.end(), {static_cast<int64_t>(step.kind), step.id, step.dst, step.src});
  }
  return nb::make_tuple(ToNumpy(std::move(rows), 4), plan.makespan_ns, plan.violation);
}

search::InitialSolution ToSolution(const model::Problem& problem, const Ints& device,
                                   const Ints& order, bool may_lack_order = false) {
  search::InitialSolution start{ToNarrow(device), ToNarrow(order)};
  const auto tasks = static_cast<size_t>(problem.num_tasks);
  const bool is_ordered = start.order.size() == tasks || (may_lack_order && order.size() == 0);
  if (start.device.size() != tasks || !is_ordered) {
    throw Error(ErrorKind::kGraph, "a placement or an order does not cover the tasks");
  }
  return start;
}

void InitProblem(model::Problem* self, Ints run_ns, Ints device_memory, Ints unit_offsets,
                 Ints unit_values, Ints weight_bytes, Ints workspace_bytes, Ints task_group,
                 Ints tensor_bytes, Ints producer, Ints is_output, Ints read_offsets,
                 Ints read_values, Ints memory_bytes, Ints link_bandwidth, Ints link_latency_ns,
                 Ints link_resource_offsets, Ints link_resource_values, Ints route_offsets,
                 Ints route_links, int host, std::optional<Ints> batch_sizes,
                 std::optional<Ints> batch_run_ns, std::optional<Ints> measured_offsets,
                 std::optional<Ints> measured_bytes, std::optional<Ints> measured_ns) {
  model::Problem problem;
  problem.run_ns = ToWide(run_ns);
  problem.device_memory = ToNarrow(device_memory);
  problem.device_units = ToCsr(unit_offsets, unit_values);
  problem.weight_bytes = ToWide(weight_bytes);
  problem.workspace_bytes = ToWide(workspace_bytes);
  problem.task_group = ToNarrow(task_group);
  problem.tensor_bytes = ToWide(tensor_bytes);
  problem.producer = ToNarrow(producer);
  problem.is_output = ToNarrow<uint8_t>(is_output);
  problem.task_reads = ToCsr(read_offsets, read_values);
  problem.memory_bytes = ToWide(memory_bytes);
  problem.link_bandwidth = ToWide(link_bandwidth);
  problem.link_latency_ns = ToWide(link_latency_ns);
  problem.link_resources = ToCsr(link_resource_offsets, link_resource_values);
  problem.route_links = ToCsr(route_offsets, route_links);
  problem.host = host;
  if (batch_sizes) problem.batch_sizes = ToNarrow(*batch_sizes);
  if (batch_run_ns) problem.batch_run_ns = ToWide(*batch_run_ns);
  if (measured_offsets && measured_bytes && measured_ns) {
    problem.measured_bytes = ToWide(*measured_bytes);
    problem.measured_ns = ToWide(*measured_ns);
    problem.link_measured.offsets = ToNarrow(*measured_offsets);
    problem.link_measured.values.resize(problem.measured_bytes.size());
    std::iota(problem.link_measured.values.begin(), problem.link_measured.values.end(), 0);
  }
  problem.Finish();
  new (self) model::Problem(std::move(problem));
}

nb::tuple SearchPlans(const model::Problem& problem,
                      const std::vector<std::pair<Ints, Ints>>& starts,
                      const search::SearchOptions& options, std::optional<nb::callable> progress) {
  std::vector<search::InitialSolution> begin;
  for (const auto& [device, order] : starts)
    begin.push_back(ToSolution(problem, device, order, true));
  if (begin.empty()) throw Error(ErrorKind::kGraph, "a search needs at least one start");
  const search::SearchHook hook = [&progress](int64_t evaluations, int64_t best, int64_t bound) {
    return PollPython(progress, evaluations, best, bound);
  };
  search::SearchOutcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = search::Search(problem, begin, options, hook);
  }
  return nb::make_tuple(ToTuple(problem, outcome.plan), outcome.evaluations, outcome.was_stopped,
                        outcome.price, outcome.bound_ns);
}

}  // namespace

void BindSchedule(nb::module_& module) {
  nb::class_<model::Problem>(module, "Problem")
      .def("__init__", &InitProblem, nb::kw_only(), nb::arg("run_ns"), nb::arg("device_memory"),
           nb::arg("unit_offsets"), nb::arg("unit_values"), nb::arg("weight_bytes"),
           nb::arg("workspace_bytes"), nb::arg("task_group"), nb::arg("tensor_bytes"),
           nb::arg("producer"), nb::arg("is_output"), nb::arg("read_offsets"),
           nb::arg("read_values"), nb::arg("memory_bytes"), nb::arg("link_bandwidth"),
           nb::arg("link_latency_ns"), nb::arg("link_resource_offsets"),
           nb::arg("link_resource_values"), nb::arg("route_offsets"), nb::arg("route_links"),
           nb::arg("host"), nb::arg("batch_sizes") = nb::none(),
           nb::arg("batch_run_ns") = nb::none(), nb::arg("measured_offsets") = nb::none(),
           nb::arg("measured_bytes") = nb::none(), nb::arg("measured_ns") = nb::none());
  module.def("heft", [](const model::Problem& problem, const Ints& preferred) {
    const std::vector<uint8_t> mask = ToNarrow<uint8_t>(preferred);
    model::NativePlan plan;
    {
      nb::gil_scoped_release release;
      plan = list::Heft(problem, mask);
    }
    return ToTuple(problem, plan);
  });
  module.def("list_schedule",
             [](const model::Problem& problem, const Ints& device, const Doubles& priority) {
               const std::vector<int> devices = ToNarrow(device);
               return ToTuple(problem, list::ListSchedule(problem, devices,
                                                          {priority.data(), priority.size()}));
             });
  module.def("search",
             [](const model::Problem& problem, const std::vector<std::pair<Ints, Ints>>& starts,
                int64_t max_evaluations, double time_limit_s, uint64_t seed, int64_t bound_ns,
                int64_t patience, int threads, std::vector<double> price, bool finds_bound,
                std::optional<nb::callable> progress) {
               const search::SearchOptions options{max_evaluations,  time_limit_s, seed,
                                                   bound_ns,         patience,     threads,
                                                   std::move(price), finds_bound};
               return SearchPlans(problem, starts, options, std::move(progress));
             });
  module.def("evaluate", [](const model::Problem& problem, const Ints& device, const Ints& order) {
    const search::InitialSolution plan = ToSolution(problem, device, order);
    list::Evaluator evaluate(problem);
    evaluate(plan.device, plan.order, list::kNever);
    return ToTuple(problem, evaluate.LatestPlan(plan.device));
  });
  module.def("what_if", [](const model::Problem& problem, const Ints& device, const Ints& order) {
    const search::InitialSolution plan = ToSolution(problem, device, order);
    std::vector<int64_t> makespan;
    {
      nb::gil_scoped_release release;
      makespan = list::WhatIf(problem, plan.device, plan.order);
    }
    return ToNumpy(std::move(makespan), static_cast<size_t>(problem.num_devices));
  });
}

}  // namespace heteroplace::bind
