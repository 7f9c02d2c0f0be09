// The simulator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "simulate/simulator.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using TimesTuple = std::tuple<NumpyInts, NumpyInts, int64_t, NumpyInts, NumpyInts, NumpyInts,
                              NumpyInts, NumpyInts>;

/*! \brief reads, makes, devices and resources as offsets and values, and durations in ns. */
using ExplicitTuple = std::tuple<Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints>;
/*! \brief For each of these steps tasks and memories of weights that it brings, as offsets and
 * values; tasks and memories of weights that are kept. */
using LoadsTuple = std::tuple<Ints, Ints, Ints>;

model::ExplicitSteps ToExplicitSteps(const ExplicitTuple& arrays) {
  model::ExplicitSteps found;
  found.reads = ToCsr(std::get<0>(arrays), std::get<1>(arrays));
  found.makes = ToCsr(std::get<2>(arrays), std::get<3>(arrays));
  found.devices = ToCsr(std::get<4>(arrays), std::get<5>(arrays));
  found.resources = ToCsr(std::get<6>(arrays), std::get<7>(arrays));
  found.duration_ns = ToWide(std::get<8>(arrays));
  return found;
}

TimesTuple SimulateSteps(const model::Problem& problem, const StepRows& rows,
                         const Ints& link_offsets, const Ints& link_values,
                         const Ints& item_offsets, const Ints& item_values, int num_items,
                         const std::optional<ExplicitTuple>& explicit_steps,
                         const std::optional<LoadsTuple>& loads) {
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
  steps.links = ToCsr(link_offsets, link_values);
  steps.items = ToCsr(item_offsets, item_values);
  steps.num_items = num_items;
  if (explicit_steps) steps.explicit_steps = ToExplicitSteps(*explicit_steps);
  if (loads) {
    steps.explicit_steps.loads = ToCsr(std::get<0>(*loads), std::get<1>(*loads));
    steps.explicit_steps.kept = ToNarrow(std::get<2>(*loads));
  }
  const int num_steps = static_cast<int>(steps.list.size());
  const bool has_items = steps.items.num_rows() != 0;
  if (steps.links.num_rows() != num_steps || (has_items && steps.items.num_rows() != num_steps)) {
    throw Error(ErrorKind::kPlan, "links or items do not match the steps");
  }
  simulate::Times times = Unlocked([&] { return simulate::Simulate(problem, steps); });
  return {ToNumpy(std::move(times.start_ns)),
          ToNumpy(std::move(times.finish_ns)),
          times.makespan_ns,
          ToNumpy(std::move(times.used_bytes)),
          ToNumpy(std::move(times.held_bytes)),
          ToNumpy(std::move(times.peak_bytes)),
          ToNumpy(std::move(times.peak_ns)),
          ToNumpy(std::move(times.peak_step))};
}

}  // namespace

void BindSimulate(nb::module_& module) {
  module.def(
      "simulate", &SimulateSteps, nb::arg("problem"), nb::arg("rows"), nb::arg("link_offsets"),
      nb::arg("link_values"), nb::arg("item_offsets"), nb::arg("item_values"), nb::arg("num_items"),
      nb::arg("explicit_steps") = nb::none(), nb::arg("loads") = nb::none(),
      "Times of the steps; see src/simulate/simulator.h. Links of each step; items of each "
      "step, or of none: item 0. Explicit steps (collectives, guarded steps, loads): reads, makes, "
      "devices and resources as offsets and values, and times in ns; a step names the position. "
      "Loads: task and memory of each weight that these steps bring, as offsets and values, and "
      "where the weights are kept. Returns (start and finish in ns "
      "[num_steps], makespan in "
      "ns, used, held and peak bytes, and time in ns and step of the peak [num_memories]).");
}

}  // namespace heteroplace::bind
