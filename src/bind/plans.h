#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bind/values.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::bind {

using PlanObject = Instance<"heteroplace.native.core_problem.NativePlan">;

inline NumpyStepRows ToRows(const model::Steps& steps) {
  std::vector<int64_t> rows;
  for (const model::Step& step : steps.list) {
    rows.insert(rows.end(), {static_cast<int64_t>(step.kind), step.id, step.dst, step.src});
  }
  // An empty array has its four columns too.
  return ToNumpy<nanobind::shape<-1, 4>>(std::move(rows), 4);
}

/*! \brief A plan for a problem that Python has. */
inline PlanObject ToPlan(const model::Problem& problem, const model::NativePlan& plan) {
  return PlanObject::Of(ToRows(model::ToSteps(problem, plan)), plan.makespan_ns, plan.violation,
                        nanobind::find(problem).attr("cluster"));
}

/*! \brief Devices of the tasks of some placements, [num_placements][num_tasks], checked. */
inline std::vector<int> ToDevices(const model::Problem& problem, const Ints& array,
                                  size_t num_placements = 1) {
  std::vector<int> devices = ToNarrow(array);
  const size_t expected = num_placements * static_cast<size_t>(problem.num_tasks);
  if (devices.size() != expected) {
    throw Error(ErrorKind::kGraph, "a placement has " + std::to_string(devices.size()) +
                                       " entries, expected " + std::to_string(expected));
  }
  for (int device : devices) {
    if (device < 0 || device >= problem.num_devices) {
      throw Error(ErrorKind::kGraph, "a placement names device " + std::to_string(device) +
                                         "; there are " + std::to_string(problem.num_devices));
    }
  }
  return devices;
}

/*! \brief Task ids, checked to be a topological order of all tasks. */
inline std::vector<int> ToOrder(const model::Problem& problem, const Ints& array) {
  std::vector<int> order = ToNarrow(array);
  std::vector<uint8_t> is_done(static_cast<size_t>(problem.num_tasks), 0);
  bool is_right = order.size() == is_done.size();
  for (size_t index = 0; is_right && index < order.size(); ++index) {
    const int task = order[index];
    is_right = task >= 0 && task < problem.num_tasks && is_done[task] == 0;
    if (!is_right) break;
    for (int before : problem.predecessors[task]) is_right = is_right && is_done[before] != 0;
    is_done[task] = 1;
  }
  if (!is_right) {
    throw Error(ErrorKind::kGraph, "the order is not a topological order of the tasks");
  }
  return order;
}

}  // namespace heteroplace::bind
