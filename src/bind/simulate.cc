#include "bind/arrays.h"
#include "bind/bind.h"
#include "simulate/simulator.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

nb::tuple SimulateSteps(const model::Problem& problem, const Ints& rows, const Ints& link_offsets,
                        const Ints& link_values, const Ints& item_offsets, const Ints& item_values,
                        int num_items) {
  model::Steps steps;
  steps.list.reserve(rows.size() / 4);
  for (size_t index = 0; index + 3 < rows.size(); index += 4) {
    const int64_t* row = rows.data() + index;
    steps.list.push_back({row[0] == 0 ? model::StepKind::kRun : model::StepKind::kCopy,
                          static_cast<int>(row[1]), static_cast<int>(row[2]),
                          static_cast<int>(row[3])});
  }
  steps.links = ToCsr(link_offsets, link_values);
  steps.items = ToCsr(item_offsets, item_values);
  steps.num_items = num_items;
  simulate::Times times;
  {
    nb::gil_scoped_release release;
    times = simulate::Simulate(problem, steps);
  }
  return nb::make_tuple(ToNumpy(std::move(times.start_ns)), ToNumpy(std::move(times.finish_ns)),
                        times.makespan_ns, ToNumpy(std::move(times.used_bytes)),
                        ToNumpy(std::move(times.peak_bytes)), ToNumpy(std::move(times.peak_ns)),
                        ToNumpy(std::move(times.peak_step)));
}

}  // namespace

void BindSimulate(nb::module_& module) { module.def("simulate", &SimulateSteps); }

}  // namespace heteroplace::bind
