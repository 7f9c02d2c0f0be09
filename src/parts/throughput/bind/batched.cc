// Several items in batches: list schedulers, compositions, the search.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind/plans.h"
#include "bind/poll_python.h"
#include "parts/throughput/batched/batch_compositions.h"
#include "parts/throughput/batched/batch_schedule.h"
#include "parts/throughput/batched/batch_search.h"
#include "parts/throughput/bind/bind.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using BatchTuple = std::tuple<NumpyInts, std::vector<double>, bool, NumpyStepRows, NumpyInts,
                              NumpyInts, int64_t, int64_t, int64_t>;

BatchTuple SearchByAnnealing(const model::Problem& problem, int num_items, const Ints& device,
                             const Doubles& key, bool is_joint, const Ints& pins, int block,
                             int64_t max_evaluations, double time_limit_s, uint64_t seed,
                             double first_heat, int64_t bound_ns,
                             const Progress<int64_t>& progress) {
  if (block < 1 || num_items < 1 || num_items % block != 0 ||
      num_items / block > throughput::kMaxBlocks) {
    throw Error(ErrorKind::kGraph, "items are not up to 64 blocks of one size");
  }
  throughput::BatchLayout first;
  first.device = ToDevices(problem, device, static_cast<size_t>(num_items / block));
  const size_t num_keys =
      static_cast<size_t>(problem.num_tasks) * static_cast<size_t>(problem.num_devices);
  if (key.size() != num_keys) throw Error(ErrorKind::kGraph, "keys do not match tasks and devices");
  first.key.assign(key.data(), key.data() + key.size());
  first.is_joint = is_joint;
  throughput::BatchSearchOptions options{block, {},         max_evaluations, time_limit_s,
                                         seed,  first_heat, bound_ns};
  if (pins.size() != 0 && pins.size() != static_cast<size_t>(problem.num_tasks)) {
    throw Error(ErrorKind::kGraph, "pins do not match the tasks");
  }
  for (size_t task = 0; task < pins.size(); ++task) {
    if (pins.data()[task] < 0 || pins.data()[task] > 2) {
      throw Error(ErrorKind::kGraph, "there is no such pin");
    }
    options.pins.push_back(static_cast<throughput::BatchPin>(pins.data()[task]));
  }
  throughput::BatchSearchResult found = Unlocked([&] {
    return throughput::SearchBatches(
        problem, num_items, first, options,
        [&progress](int64_t evaluations) { return PollPython(progress, evaluations); });
  });
  const model::Csr& items = found.steps.items;
  return {Widen(found.layout.device), std::move(found.layout.key),
          found.layout.is_joint,      ToRows(found.steps),
          Widen(items.offsets),       Widen(items.values),
          found.makespan_ns,          found.violation,
          found.num_evaluations};
}

std::vector<std::vector<std::pair<int, int>>> ListCompositions(const model::Problem& problem,
                                                               int task, int num_items) {
  std::vector<std::vector<std::pair<int, int>>> lists;
  for (const throughput::Composition& batches :
       throughput::Compositions(problem, task, num_items)) {
    std::vector<std::pair<int, int>>& list = lists.emplace_back();
    for (const throughput::DeviceBatch& batch : batches)
      list.emplace_back(batch.device, batch.size);
  }
  return lists;
}

std::tuple<NumpyStepRows, NumpyInts, NumpyInts, int64_t, int64_t> PlanBatches(
    const model::Problem& problem, int num_items, int rule, double limit_s) {
  const list::Watch watch = WatchFor(limit_s);
  const throughput::BatchPlan plan = Unlocked([&] {
    return throughput::ScheduleBatches(problem, num_items, static_cast<throughput::BatchRule>(rule),
                                       watch);
  });
  const model::Csr& items = plan.steps.items;
  return {ToRows(plan.steps), Widen(items.offsets), Widen(items.values), plan.makespan_ns,
          plan.violation};
}

}  // namespace

void BindBatched(nb::module_& module) {
  module.def(
      "search_batches", &SearchByAnnealing, nb::arg("problem"), nb::arg("num_items"),
      nb::arg("device"), nb::arg("key"), nb::kw_only(), nb::arg("is_joint"), nb::arg("pins"),
      nb::arg("block"), nb::arg("max_evaluations"), nb::arg("time_limit_s"), nb::arg("seed"),
      nb::arg("first_heat"), nb::arg("bound_ns"), nb::arg("progress").none(),
      "Anneal batches; see src/parts/throughput/batched/batch_search.h. `device` [num_tasks * "
      "num_blocks], "
      "`key` [num_tasks * num_devices], `pins` [num_tasks] or empty. Returns (devices, keys, "
      "whether copies are joint, steps, offsets and values of their items, makespan in ns, "
      "violation, evaluations).");
  module.def("batch_compositions", &ListCompositions, nb::arg("problem"), nb::arg("task"),
             nb::arg("num_items"),
             "(device, size) of each batch of each way to serve all items of a task.");
  module.def(
      "unserved_tasks",
      [](const model::Problem& problem, int num_items) {
        return Widen(throughput::UnservedTasks(problem, num_items));
      },
      nb::arg("problem"), nb::arg("num_items"),
      "Ids of the tasks that cannot serve so many items.");
  module.def("schedule_batches", &PlanBatches, nb::arg("problem"), nb::arg("num_items"),
             nb::arg("rule"), nb::arg("time_limit_s"),
             "Several items; see src/parts/throughput/batched/batch_schedule.h: (steps, offsets "
             "and values of their "
             "items, makespan in ns, violation).");
}

}  // namespace heteroplace::bind
