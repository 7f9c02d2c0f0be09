// List schedulers of the literature, for `heteroplace.native.baselines`.
#include <nanobind/nanobind.h>

#include <string>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "list/adjusting_placement.h"
#include "list/etf.h"
#include "list/greedy.h"
#include "list/m_etf.h"
#include "list/m_sct.h"
#include "list/m_topo.h"
#include "list/mean_graph.h"
#include "list/met.h"
#include "list/order_place.h"
#include "model/problem.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief Runs a scheduler without the interpreter's lock; its steps as rows of numbers. */
template <typename Scheduler>
nb::tuple RowsOf(const model::Problem& problem, const Scheduler& scheduler) {
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (problem.allowed[task].empty()) {
      throw Error(ErrorKind::kInfeasible,
                  "task " + std::to_string(task) + " can run on no device; solvers tell why");
    }
  }
  std::vector<int64_t> rows;
  model::NativePlan plan;
  {
    nb::gil_scoped_release release;
    plan = scheduler();
    for (const model::Step& step : model::ToSteps(problem, plan).list) {
      rows.insert(rows.end(), {static_cast<int64_t>(step.kind), step.id, step.dst, step.src});
    }
  }
  return nb::make_tuple(ToNumpy(std::move(rows), 4), plan.makespan_ns, plan.violation);
}

/*! \brief Task ids, checked to be a topological order of all tasks. */
std::vector<int> ToOrder(const model::Problem& problem, const Ints& array) {
  const std::vector<int> order = ToNarrow(array);
  std::vector<uint8_t> is_done(static_cast<size_t>(problem.num_tasks), 0);
  bool is_right = order.size() == is_done.size();
  for (size_t index = 0; is_right && index < order.size(); ++index) {
    const int task = order[index];
    is_right = task >= 0 && task < problem.num_tasks && is_done[task] == 0;
    if (!is_right) break;
    for (int before : problem.predecessors[task]) is_right = is_right && is_done[before] != 0;
    is_done[task] = 1;
  }
  if (!is_right)
    throw Error(ErrorKind::kGraph, "the order is not a topological order of the tasks");
  return order;
}

nb::object Widen(const std::vector<int>& values) { return ToNumpy({values.begin(), values.end()}); }

/*! \brief (offsets, values) of the allowed devices among those asked for; all tasks need one. */
nb::tuple RunEtf(const model::Problem& problem, const Ints& offsets, const Ints& values) {
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
  return RowsOf(problem, [&] { return list::Etf(problem, devices); });
}

nb::tuple RunMSct(const model::Problem& problem, const Ints& favourite) {
  const std::vector<int> children = ToNarrow(favourite);
  bool is_right = children.size() == static_cast<size_t>(problem.num_tasks);
  for (int child : children) is_right = is_right && child >= -1 && child < problem.num_tasks;
  if (!is_right) throw Error(ErrorKind::kGraph, "favourite children do not match the tasks");
  return RowsOf(problem, [&] { return list::MSct(problem, children); });
}

/*! \brief (run [num_tasks], edge offsets, edge heads, transfer [num_edges]): mean times in ns. */
nb::tuple BindMeanGraph(const model::Problem& problem) {
  list::MeanGraph graph = list::MakeMeanGraph(problem);
  return nb::make_tuple(ToNumpy(std::move(graph.run_ns)), Widen(graph.dag.successors.offsets),
                        Widen(graph.dag.successors.values), ToNumpy(std::move(graph.transfer_ns)));
}

}  // namespace

void BindBaselines(nb::module_& module) {
  module.def("met", [](const model::Problem& problem) {
    return RowsOf(problem, [&] { return list::Met(problem); });
  });
  module.def("greedy", [](const model::Problem& problem) {
    return RowsOf(problem, [&] { return list::Greedy(problem); });
  });
  module.def("etf", &RunEtf);
  module.def("m_etf", [](const model::Problem& problem) {
    return RowsOf(problem, [&] { return list::MEtf(problem); });
  });
  module.def("m_sct", &RunMSct);
  module.def("m_topo", [](const model::Problem& problem, bool is_uniform) {
    const list::TopoCap cap = is_uniform ? list::TopoCap::kUniform : list::TopoCap::kMemory;
    return RowsOf(problem, [&] { return list::MTopo(problem, cap); });
  });
  module.def("order_place", [](const model::Problem& problem, const Ints& order) {
    const std::vector<int> tasks = ToOrder(problem, order);
    return RowsOf(problem, [&] { return list::OrderPlace(problem, tasks); });
  });
  module.def("adjusting_placement", [](const model::Problem& problem, const Ints& order) {
    const std::vector<int> tasks = ToOrder(problem, order);
    return RowsOf(problem, [&] { return list::AdjustingPlacement(problem, tasks); });
  });
  module.def("task_critical_path_order",
             [](const model::Problem& problem) { return Widen(list::CriticalPathOrder(problem)); });
  module.def("mean_graph", &BindMeanGraph);
}

}  // namespace heteroplace::bind
