#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "list/batch_compositions.h"
#include "list/batch_schedule.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief (device, size) of each part of each composition. */
std::vector<std::vector<std::pair<int, int>>> ListCompositions(const model::Problem& problem,
                                                               int task, int num_items) {
  std::vector<std::vector<std::pair<int, int>>> lists;
  for (const list::Composition& parts : list::Compositions(problem, task, num_items)) {
    std::vector<std::pair<int, int>>& list = lists.emplace_back();
    for (const list::BatchPart& part : parts) list.emplace_back(part.device, part.size);
  }
  return lists;
}

/*! \brief (steps [num_steps][4] of kind, subject, place, src; offsets and values of their items;
 * makespan of the plan; violation). */
nb::tuple ScheduleAll(const model::Problem& problem, int num_items, int rule) {
  list::BatchPlan plan;
  {
    nb::gil_scoped_release release;
    plan = list::ScheduleBatches(problem, num_items, static_cast<list::BatchRule>(rule));
  }
  std::vector<int64_t> rows;
  for (const model::Step& step : plan.steps.list) {
    rows.insert(rows.end(), {static_cast<int64_t>(step.kind), step.id, step.dst, step.src});
  }
  const model::Csr& items = plan.steps.items;
  return nb::make_tuple(
      ToNumpy(std::move(rows), 4), ToNumpy({items.offsets.begin(), items.offsets.end()}),
      ToNumpy({items.values.begin(), items.values.end()}), plan.makespan_ns, plan.violation);
}

}  // namespace

void BindBatches(nb::module_& module) {
  module.def("batch_compositions", &ListCompositions);
  module.def("schedule_batches", &ScheduleAll);
}

}  // namespace heteroplace::bind
