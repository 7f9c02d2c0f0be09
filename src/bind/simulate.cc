// The simulator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>

#include "bind/bind.h"
#include "bind/plans.h"
#include "bind/values.h"
#include "simulate/loads.h"
#include "simulate/simulator.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using StepTimes = Instance<"heteroplace.native.simulate.StepTimes">;

/*! \brief reads, makes, devices and resources of each step, and durations in ns. */
using ExplicitArrays = std::tuple<Rows, Rows, Rows, Rows, Ints>;
/*! \brief For each of these steps tasks and memories of weights that it brings; tasks and memories
 * of weights that are kept. */
using LoadArrays = std::pair<Rows, Ints>;

StepTimes SimulateSteps(const model::Problem& problem, const StepRows& rows, const Rows& links,
                        const Rows& items, int num_items,
                        const std::optional<ExplicitArrays>& explicit_steps,
                        const std::optional<LoadArrays>& loads) {
  model::Steps steps;
  steps.list.reserve(rows.shape(0));
  for (size_t index = 0; index < rows.shape(0); ++index) {
    const int64_t* row = rows.data() + 4 * index;
    if (row[0] < 0 || row[0] > static_cast<int64_t>(model::StepKind::kGuarded)) {
      throw Error(ErrorKind::kPlan, "step " + std::to_string(index) + " is of no known kind");
    }
    steps.list.push_back({static_cast<model::StepKind>(row[0]), static_cast<int>(row[1]),
                          static_cast<int>(row[2]), static_cast<int>(row[3])});
  }
  steps.links = ToCsr(links);
  steps.items = ToCsr(items);
  steps.num_items = num_items;
  if (explicit_steps) {
    const auto& [reads, makes, devices, resources, duration_ns] = *explicit_steps;
    steps.explicit_steps.reads = ToCsr(reads);
    steps.explicit_steps.makes = ToCsr(makes);
    steps.explicit_steps.devices = ToCsr(devices);
    steps.explicit_steps.resources = ToCsr(resources);
    steps.explicit_steps.duration_ns = ToWide(duration_ns);
  }
  if (loads) {
    steps.explicit_steps.loads = ToCsr(loads->first);
    steps.explicit_steps.kept = ToNarrow(loads->second);
  }
  const int num_steps = static_cast<int>(steps.list.size());
  const bool has_items = steps.items.num_rows() != 0;
  if (steps.links.num_rows() != num_steps || (has_items && steps.items.num_rows() != num_steps)) {
    throw Error(ErrorKind::kPlan, "links or items do not match the steps");
  }
  simulate::Times times = Unlocked([&] { return simulate::Simulate(problem, steps); });
  return StepTimes::Of(ToNumpy(std::move(times.start_ns)), ToNumpy(std::move(times.finish_ns)),
                       times.makespan_ns, ToTuple(times.used_bytes), ToTuple(times.held_bytes),
                       ToTuple(times.peak_bytes), ToTuple(times.peak_ns), ToTuple(times.peak_step));
}

std::tuple<NumpyInts, NumpyInts, int64_t> PlacementLoads(const model::Problem& problem,
                                                         const Ints& device) {
  const simulate::Loads loads(problem, ToDevices(problem, device));
  return {Widen(loads.busy_ns()), Widen(loads.used_bytes()), loads.num_unreachable()};
}

}  // namespace

void BindSimulate(nb::module_& module) {
  module.def(
      "simulate", &SimulateSteps, nb::arg("problem"), nb::arg("rows"), nb::arg("links"),
      nb::arg("items"), nb::arg("num_items"), nb::arg("explicit_steps") = nb::none(),
      nb::arg("loads") = nb::none(),
      "Times of the steps; see src/simulate/simulator.h. Links of each step; items of each "
      "step, or of none: item 0. Explicit steps (collectives, guarded steps, loads): reads, makes, "
      "devices and resources, and times in ns; a step names the position. Loads: task and memory "
      "of each weight that these steps bring, and where the weights are kept. Lists of lists are "
      "offsets and values.");
  module.def("placement_loads", &PlacementLoads, nb::arg("problem"), nb::arg("device"),
             "(busy ns [num_resources], used bytes [num_memories], copies without a route) of one "
             "item under a placement [num_tasks].");
}

}  // namespace heteroplace::bind
