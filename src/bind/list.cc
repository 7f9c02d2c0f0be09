// The list schedulers, and the means and ranks that they go by.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include "bind/bind.h"
#include "bind/plans.h"
#include "bind/poll_python.h"
#include "graph/dag.h"
#include "list/adjusting_placement.h"
#include "list/engine/list_parts.h"
#include "list/engine/list_schedule.h"
#include "list/engine/mean_graph.h"
#include "list/engine/ranks.h"
#include "list/engine/ready_queue.h"
#include "list/engine/within_memory.h"
#include "list/evaluate.h"
#include "list/fastest_mapping.h"
#include "list/m_sct.h"
#include "list/m_topo.h"
#include "list/order_place.h"
#include "list/what_if.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using MeanGraph = Instance<"heteroplace.native.list.MeanGraph">;
/*! \brief What comes next, what its device is chosen by, where it starts there. */
using Parts = std::tuple<std::string, std::string, std::string>;
/*! \brief For each task the devices to choose from. */
using TaskDevices = std::vector<std::vector<int>>;

void CheckAllowed(const model::Problem& problem) {
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (problem.allowed[task].empty()) {
      throw Error(ErrorKind::kInfeasible,
                  "task " + std::to_string(task) + " can run on no device; solvers tell why");
    }
  }
}

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/*! \brief Makes a plan within the memories, without the interpreter's lock, in some seconds. */
template <typename MakePlan>
PlanObject PlanBy(const model::Problem& problem, double limit_s, const MakePlan& make_plan) {
  CheckAllowed(problem);
  const list::Watch watch = WatchFor(limit_s);
  return ToPlan(problem, Unlocked([&] {
                  return list::PlanWithinMemory(
                      problem, [&](const auto& rule) { return make_plan(rule, watch); });
                }));
}

PlanObject PlanByParts(const model::Problem& problem, const Parts& parts, double limit_s,
                       const std::optional<IntSequence>& devices) {
  const list::ListParts by =
      list::FindParts(std::get<0>(parts), std::get<1>(parts), std::get<2>(parts));
  std::vector<uint8_t> is_preferred(static_cast<size_t>(problem.num_devices), !devices);
  if (devices) {
    for (int64_t device : View(*devices)) is_preferred.at(static_cast<size_t>(device)) = 1;
  }
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::PlanByParts(rule, by, is_preferred, watch);
  });
}

PlanObject PlanByEarliest(const model::Problem& problem, const std::optional<TaskDevices>& given,
                          list::Earliest by, double limit_s) {
  CheckAllowed(problem);
  model::Csr devices;
  for (const std::vector<int>& row : given.value_or(TaskDevices())) devices.AddRow(row);
  if (!given) devices = problem.allowed;
  bool is_right = devices.num_rows() == problem.num_tasks;
  for (int task = 0; is_right && task < problem.num_tasks; ++task) {
    is_right = !devices[task].empty();
    for (int device : devices[task]) {
      is_right = is_right && device >= 0 && device < problem.num_devices &&
                 problem.Run(task, device) != model::kImpossible;
    }
  }
  if (!is_right) throw Error(ErrorKind::kGraph, "a task has no device, or one it may not be on");
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::PlaceEarliest(rule, devices, by, watch);
  });
}

PlanObject PlanByMSct(const model::Problem& problem, const IntSequence& favourite, double limit_s) {
  const std::vector<int> children = ToNarrow(favourite);
  bool is_right = children.size() == static_cast<size_t>(problem.num_tasks);
  for (int child : children) is_right = is_right && child >= -1 && child < problem.num_tasks;
  if (!is_right) throw Error(ErrorKind::kGraph, "favourite children do not match the tasks");
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::MSct(rule, children, watch);
  });
}

PlanObject PlanByMTopo(const model::Problem& problem, bool is_uniform) {
  const list::TopoCap cap = is_uniform ? list::TopoCap::kUniform : list::TopoCap::kMemory;
  return PlanBy(problem, kNoLimit,
                [&](const auto& rule, const auto&) { return list::MTopo(rule, cap); });
}

PlanObject PlanByOrderPlace(const model::Problem& problem, const IntSequence& order) {
  const std::vector<int> tasks = ToOrder(problem, order);
  return PlanBy(problem, kNoLimit,
                [&](const auto& rule, const auto&) { return list::OrderPlace(rule, tasks); });
}

PlanObject PlanByAdjusting(const model::Problem& problem, const IntSequence& order,
                           double limit_s) {
  const std::vector<int> tasks = ToOrder(problem, order);
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::AdjustingPlacement(rule, tasks, watch);
  });
}

PlanObject PlanByPriority(const model::Problem& problem, const IntSequence& device,
                          const Sequence<double>& priority) {
  const std::vector<int> devices = ToDevices(problem, device);
  if (priority.size() != devices.size()) {
    throw Error(ErrorKind::kGraph, "priorities do not match the tasks");
  }
  return ToPlan(problem, list::ListSchedule(problem, devices, {priority.data(), priority.size()}));
}

PlanObject EvaluateOrder(const model::Problem& problem, const IntSequence& device,
                         const IntSequence& order) {
  const std::vector<int> devices = ToDevices(problem, device);
  list::Evaluator evaluate(problem);
  evaluate(devices, ToOrder(problem, order), list::kNever);
  return ToPlan(problem, evaluate.LatestPlan(devices));
}

Numpy<int64_t, nb::ndim<2>> MakespansOfMoves(const model::Problem& problem,
                                             const IntSequence& device, const IntSequence& order,
                                             const std::optional<IntSequence>& given) {
  const std::vector<int> devices = ToDevices(problem, device), tasks = ToOrder(problem, order);
  std::vector<int> moved(static_cast<size_t>(problem.num_tasks));
  std::iota(moved.begin(), moved.end(), 0);
  if (given) moved = ToNarrow(*given);
  for (int task : moved) {
    if (task < 0 || task >= problem.num_tasks) {
      throw Error(ErrorKind::kGraph, "a moved task is none of the problem");
    }
  }
  return ToNumpy<nb::ndim<2>>(
      Unlocked([&] { return list::WhatIf(problem, devices, tasks, moved); }),
      static_cast<size_t>(problem.num_devices));
}

MeanGraph MeanTimes(const model::Problem& problem) {
  list::MeanGraph graph = list::MakeMeanGraph(problem);
  std::vector<int64_t> src;
  for (int task = 0; task < problem.num_tasks; ++task) {
    src.insert(src.end(), graph.dag.successors[task].size(), task);
  }
  return MeanGraph::Of(ToNumpy(std::move(graph.run_ns)), ToNumpy(std::move(src)),
                       Widen(graph.dag.successors.values), ToNumpy(std::move(graph.transfer_ns)));
}

void BindSchedulers(nb::module_& module) {
  module
      .def("plan_by", &PlanByParts, nb::arg("native"), nb::arg("parts"),
           nb::arg("time_limit_s") = kNoLimit, nb::arg("devices") = nb::none(), R"(
Plan by a list scheduler of three parts; see `src/list/engine/list_parts.h`.

Parameters
----------
devices
    Those that are preferred: a task that none of them can run goes elsewhere. None: all.

Raises
------
InfeasibleError
    A task can run on no device.
PlanError
    There is no such part; the message lists them.
)")
      .def(
          "etf",
          [](const model::Problem& problem, const std::optional<TaskDevices>& devices,
             double limit_s) {
            return PlanByEarliest(problem, devices, list::Earliest::kFinish, limit_s);
          },
          nb::arg("native"), nb::arg("devices") = nb::none(), nb::arg("time_limit_s") = kNoLimit,
          R"(
Place the pair that finishes first, again and again; see `src/list/engine/ready_queue.h`.

Parameters
----------
devices
    For each task the devices to choose from, at least one; None: all that it may be on.

Raises
------
GraphError
    A task has no device, or one that it may not be on.
)")
      .def(
          "m_etf",
          [](const model::Problem& problem, double limit_s) {
            return PlanByEarliest(problem, {}, list::Earliest::kStart, limit_s);
          },
          nb::arg("native"), nb::arg("time_limit_s") = kNoLimit,
          "Place the pair that starts first, again and again; see "
          "`src/list/engine/ready_queue.h`.")
      .def("m_sct", &PlanByMSct, nb::arg("native"), nb::arg("favourite"),
           nb::arg("time_limit_s") = kNoLimit, R"(
As m-ETF, with devices that wait for favourite children; see `src/list/m_sct.h`.

Parameters
----------
favourite
    [num_tasks], the favourite child of each task; -1: none.
)")
      .def("m_topo", &PlanByMTopo, nb::arg("native"), nb::kw_only(), nb::arg("is_uniform"), R"(
Fill memories in breadth-first order; see `src/list/m_topo.h`.

Parameters
----------
is_uniform
    Up to the mean load plus the largest task, not to the limit.
)")
      .def("order_place", &PlanByOrderPlace, nb::arg("native"), nb::arg("order"), R"(
Fill memories in a topological order; see `src/list/order_place.h`.

Raises
------
GraphError
    `order` is not a topological order of all tasks.
)")
      .def("adjusting_placement", &PlanByAdjusting, nb::arg("native"), nb::arg("order"),
           nb::arg("time_limit_s") = kNoLimit, R"(
Stay on one device unless leaving pays; see `src/list/adjusting_placement.h`.

Raises
------
GraphError
    `order` is not a topological order of all tasks.
)")
      .def("list_schedule", &PlanByPriority, nb::arg("native"), nb::arg("placement"),
           nb::arg("priority"),
           "Schedule a placement, highest priority first, with insertion into gaps.");
}

}  // namespace

void BindList(nb::module_& module) {
  BindSchedulers(module);
  module
      .def("evaluate_order", &EvaluateOrder, nb::arg("native"), nb::arg("placement"),
           nb::arg("order"),
           "Schedule a placement, tasks in the given topological order, without gaps on units.")
      .def("what_if", &MakespansOfMoves, nb::arg("native"), nb::arg("placement"), nb::arg("order"),
           nb::arg("tasks") = nb::none(), R"(
Makespan in ns after moving each one task (and its colocation group) to each device.

[tasks, num_devices] of the given ones, None: of all; IMPOSSIBLE where it cannot be.
)")
      .def(
          "upward_ranks",
          [](const model::Problem& problem) { return ToNumpy(list::BatchRanks(problem, 1)); },
          nb::arg("native"),
          "Return the upward rank of each task in ns: means over all devices, [num_tasks].")
      .def("mean_graph", &MeanTimes, nb::arg("native"),
           "Return run and transfer times as HEFT averages them.")
      .def(
          "task_dag", [](const model::Problem& problem) { return graph::Dag(problem.successors); },
          nb::arg("native"), "The tasks of a problem and the edges between them.")
      .def(
          "critical_path_order",
          [](const model::Problem& problem) { return Widen(list::CriticalPathOrder(problem)); },
          nb::arg("native"),
          "Return the tasks in CPD-TOPO of Celeritas (section 5.1), by mean times.")
      .def(
          "fastest_mapping",
          [](const model::Problem& problem, const IntSequence& order) {
            CheckAllowed(problem);
            return ToTuple(list::FastestMapping(problem, ToOrder(problem, order)));
          },
          nb::arg("native"), nb::arg("order"), R"(
Return the fastest device with room for each task, in the given order.

Every task needs an allowed device. A memory may still overflow where none had room.
)");
}

}  // namespace heteroplace::bind
