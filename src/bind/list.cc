// The list schedulers, and the means and ranks that they go by.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <iterator>
#include <limits>

#include "bind/bind.h"
#include "bind/plans.h"
#include "bind/poll_python.h"
#include "list/adjusting_placement.h"
#include "list/batch_compositions.h"
#include "list/batch_schedule.h"
#include "list/engine/list_parts.h"
#include "list/engine/list_schedule.h"
#include "list/engine/mean_graph.h"
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
PlanTuple PlanBy(const model::Problem& problem, double limit_s, const MakePlan& make_plan) {
  CheckAllowed(problem);
  const list::Watch watch = WatchFor(limit_s);
  return ToTuple(problem, Unlocked([&] {
                   return list::PlanWithinMemory(
                       problem, [&](const auto& rule) { return make_plan(rule, watch); });
                 }));
}

PlanTuple PlanByParts(const model::Problem& problem, const std::string& priority,
                      const std::string& choice, const std::string& insertion,
                      const Ints& preferred, double limit_s) {
  const list::ListParts parts = list::FindParts(priority, choice, insertion);
  const std::vector<uint8_t> mask = ToNarrow<uint8_t>(preferred);
  if (mask.size() != static_cast<size_t>(problem.num_devices)) {
    throw Error(ErrorKind::kGraph, "preferred devices do not match the devices");
  }
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::PlanByParts(rule, parts, mask, watch);
  });
}

PlanTuple PlanByEarliest(const model::Problem& problem, const Ints& offsets, const Ints& values,
                         bool is_by_start, double limit_s) {
  const list::Earliest by = is_by_start ? list::Earliest::kStart : list::Earliest::kFinish;
  CheckAllowed(problem);
  const model::Csr devices = ToCsr(offsets, values);
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

PlanTuple PlanByMSct(const model::Problem& problem, const Ints& favourite, double limit_s) {
  const std::vector<int> children = ToNarrow(favourite);
  bool is_right = children.size() == static_cast<size_t>(problem.num_tasks);
  for (int child : children) is_right = is_right && child >= -1 && child < problem.num_tasks;
  if (!is_right) throw Error(ErrorKind::kGraph, "favourite children do not match the tasks");
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::MSct(rule, children, watch);
  });
}

PlanTuple PlanByMTopo(const model::Problem& problem, bool is_uniform) {
  const list::TopoCap cap = is_uniform ? list::TopoCap::kUniform : list::TopoCap::kMemory;
  return PlanBy(problem, kNoLimit,
                [&](const auto& rule, const auto&) { return list::MTopo(rule, cap); });
}

PlanTuple PlanByOrderPlace(const model::Problem& problem, const Ints& order) {
  const std::vector<int> tasks = ToOrder(problem, order);
  return PlanBy(problem, kNoLimit,
                [&](const auto& rule, const auto&) { return list::OrderPlace(rule, tasks); });
}

PlanTuple PlanByAdjusting(const model::Problem& problem, const Ints& order, double limit_s) {
  const std::vector<int> tasks = ToOrder(problem, order);
  return PlanBy(problem, limit_s, [&](const auto& rule, const auto& watch) {
    return list::AdjustingPlacement(rule, tasks, watch);
  });
}

PlanTuple PlanByPriority(const model::Problem& problem, const Ints& device,
                         const Doubles& priority) {
  const std::vector<int> devices = ToDevices(problem, device);
  if (priority.size() != devices.size()) {
    throw Error(ErrorKind::kGraph, "priorities do not match the tasks");
  }
  return ToTuple(problem, list::ListSchedule(problem, devices, {priority.data(), priority.size()}));
}

PlanTuple EvaluateOrder(const model::Problem& problem, const Ints& device, const Ints& order) {
  const std::vector<int> devices = ToDevices(problem, device);
  list::Evaluator evaluate(problem);
  evaluate(devices, ToOrder(problem, order), list::kNever);
  return ToTuple(problem, evaluate.LatestPlan(devices));
}

Numpy<int64_t, nb::ndim<2>> MakespansOfMoves(const model::Problem& problem, const Ints& device,
                                             const Ints& order, const Ints& moved) {
  const std::vector<int> devices = ToDevices(problem, device), tasks = ToOrder(problem, order);
  std::vector<int> some;
  for (size_t i = 0; i < moved.size(); ++i) {
    if (moved.data()[i] < 0 || moved.data()[i] >= problem.num_tasks) {
      throw Error(ErrorKind::kGraph, "a moved task is none of the problem");
    }
    some.push_back(static_cast<int>(moved.data()[i]));
  }
  return ToNumpy<nb::ndim<2>>(Unlocked([&] { return list::WhatIf(problem, devices, tasks, some); }),
                              static_cast<size_t>(problem.num_devices));
}

std::vector<std::vector<std::pair<int, int>>> ListCompositions(const model::Problem& problem,
                                                               int task, int num_items) {
  std::vector<std::vector<std::pair<int, int>>> lists;
  for (const list::Composition& batches : list::Compositions(problem, task, num_items)) {
    std::vector<std::pair<int, int>>& list = lists.emplace_back();
    for (const list::DeviceBatch& batch : batches) list.emplace_back(batch.device, batch.size);
  }
  return lists;
}

std::tuple<NumpyStepRows, NumpyInts, NumpyInts, int64_t, int64_t> PlanBatches(
    const model::Problem& problem, int num_items, int rule, double limit_s) {
  const list::Watch watch = WatchFor(limit_s);
  const list::BatchPlan plan = Unlocked([&] {
    return list::ScheduleBatches(problem, num_items, static_cast<list::BatchRule>(rule), watch);
  });
  const model::Csr& items = plan.steps.items;
  return {ToRows(plan.steps), Widen(items.offsets), Widen(items.values), plan.makespan_ns,
          plan.violation};
}

std::tuple<NumpyInts, NumpyInts, NumpyInts, NumpyInts> MeanTimes(const model::Problem& problem) {
  list::MeanGraph graph = list::MakeMeanGraph(problem);
  return {ToNumpy(std::move(graph.run_ns)), Widen(graph.dag.successors.offsets),
          Widen(graph.dag.successors.values), ToNumpy(std::move(graph.transfer_ns))};
}

void BindSchedulers(nb::module_& module) {
  module.def(
      "plan_by_parts", &PlanByParts, nb::arg("problem"), nb::arg("priority"), nb::arg("choice"),
      nb::arg("insertion"), nb::arg("preferred"), nb::arg("time_limit_s"),
      "Plan by a list scheduler of three parts; see src/list/engine/list_parts.h. `preferred` "
      "[num_devices]: 0 keeps a device for tasks that no preferred one can run.");
  module.def(
      "earliest", &PlanByEarliest, nb::arg("problem"), nb::arg("offsets"), nb::arg("values"),
      nb::arg("is_by_start"), nb::arg("time_limit_s"),
      "ETF, by finish, and m-ETF, by start; see src/list/engine/ready_queue.h. Offsets and values: "
      "devices of each task to choose from.");
  module.def("m_sct", &PlanByMSct, nb::arg("problem"), nb::arg("favourite"),
             nb::arg("time_limit_s"),
             "m-SCT; see src/list/m_sct.h. `favourite` [num_tasks]: a child, or -1.");
  module.def("m_topo", &PlanByMTopo, nb::arg("problem"), nb::arg("is_uniform"),
             "m-TOPO; see src/list/m_topo.h.");
  module.def("order_place", &PlanByOrderPlace, nb::arg("problem"), nb::arg("order"),
             "Order-Place; see src/list/order_place.h. `order` [num_tasks], topological.");
  module.def("adjusting_placement", &PlanByAdjusting, nb::arg("problem"), nb::arg("order"),
             nb::arg("time_limit_s"),
             "Adjusting Placement; see src/list/adjusting_placement.h. `order` [num_tasks], "
             "topological.");
  module.def("list_schedule", &PlanByPriority, nb::arg("problem"), nb::arg("device"),
             nb::arg("priority"),
             "A placement [num_tasks], highest priority [num_tasks] first, into gaps.");
  module.def("schedule_batches", &PlanBatches, nb::arg("problem"), nb::arg("num_items"),
             nb::arg("rule"), nb::arg("time_limit_s"),
             "Several items; see src/list/batch_schedule.h: (steps, offsets and values of their "
             "items, makespan in ns, violation).");
}

}  // namespace

void BindList(nb::module_& module) {
  BindSchedulers(module);
  module.def("evaluate", &EvaluateOrder, nb::arg("problem"), nb::arg("device"), nb::arg("order"),
             "The plan of a placement in a topological order, without gaps on units.");
  module.def(
      "what_if", &MakespansOfMoves, nb::arg("problem"), nb::arg("device"), nb::arg("order"),
      nb::arg("moved"),
      "Makespan in ns, [num_moved, num_devices], after moving each one of the tasks `moved`; "
      "-1: it cannot be there.");
  module.def("batch_compositions", &ListCompositions, nb::arg("problem"), nb::arg("task"),
             nb::arg("num_items"),
             "(device, size) of each batch of each way to serve all items of a task.");
  module.def(
      "unserved_tasks",
      [](const model::Problem& problem, int num_items) {
        return Widen(list::UnservedTasks(problem, num_items));
      },
      nb::arg("problem"), nb::arg("num_items"),
      "Ids of the tasks that cannot serve so many items.");
  module.def(
      "upward_ranks",
      [](const model::Problem& problem) { return ToNumpy(list::BatchRanks(problem, 1)); },
      nb::arg("problem"), "Upward ranks (HEFT, equation 4) in ns, [num_tasks].");
  module.def("mean_graph", &MeanTimes, nb::arg("problem"),
             "(mean run ns [num_tasks], offsets and heads of the edges, mean transfer ns "
             "[num_edges]).");
  module.def(
      "task_critical_path_order",
      [](const model::Problem& problem) { return Widen(list::CriticalPathOrder(problem)); },
      nb::arg("problem"), "CPD-TOPO of Celeritas (section 5.1) with mean times, [num_tasks].");
  module.def(
      "fastest_mapping",
      [](const model::Problem& problem, const Ints& order) {
        CheckAllowed(problem);
        return Widen(list::FastestMapping(problem, ToOrder(problem, order)));
      },
      nb::arg("problem"), nb::arg("order"),
      "MET: the fastest device with room for each task, in a topological order [num_tasks].");
}

}  // namespace heteroplace::bind
