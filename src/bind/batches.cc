// The search over batches of several items.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind/bind.h"
#include "bind/plans.h"
#include "bind/poll_python.h"
#include "search/batch_search.h"

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
      num_items / block > search::kMaxBlocks) {
    throw Error(ErrorKind::kGraph, "items are not up to 64 blocks of one size");
  }
  search::BatchLayout first;
  first.device = ToDevices(problem, device, static_cast<size_t>(num_items / block));
  const size_t num_keys =
      static_cast<size_t>(problem.num_tasks) * static_cast<size_t>(problem.num_devices);
  if (key.size() != num_keys) throw Error(ErrorKind::kGraph, "keys do not match tasks and devices");
  first.key.assign(key.data(), key.data() + key.size());
  first.is_joint = is_joint;
  search::BatchSearchOptions options{block, {},         max_evaluations, time_limit_s,
                                     seed,  first_heat, bound_ns};
  if (pins.size() != 0 && pins.size() != static_cast<size_t>(problem.num_tasks)) {
    throw Error(ErrorKind::kGraph, "pins do not match the tasks");
  }
  for (size_t task = 0; task < pins.size(); ++task) {
    if (pins.data()[task] < 0 || pins.data()[task] > 2) {
      throw Error(ErrorKind::kGraph, "there is no such pin");
    }
    options.pins.push_back(static_cast<search::BatchPin>(pins.data()[task]));
  }
  search::BatchSearchResult found = Unlocked([&] {
    return search::SearchBatches(
        problem, num_items, std::move(first), options,
        [&progress](int64_t evaluations) { return PollPython(progress, evaluations); });
  });
  const model::Csr& items = found.steps.items;
  return {Widen(found.layout.device), std::move(found.layout.key),
          found.layout.is_joint,      ToRows(found.steps),
          Widen(items.offsets),       Widen(items.values),
          found.makespan_ns,          found.violation,
          found.num_evaluations};
}

}  // namespace

void BindBatches(nb::module_& module) {
  module.def(
      "search_batches", &SearchByAnnealing, nb::arg("problem"), nb::arg("num_items"),
      nb::arg("device"), nb::arg("key"), nb::kw_only(), nb::arg("is_joint"), nb::arg("pins"),
      nb::arg("block"), nb::arg("max_evaluations"), nb::arg("time_limit_s"), nb::arg("seed"),
      nb::arg("first_heat"), nb::arg("bound_ns"), nb::arg("progress").none(),
      "Anneal batches; see src/search/batch_search.h. `device` [num_tasks * num_blocks], "
      "`key` [num_tasks * num_devices], `pins` [num_tasks] or empty. Returns (devices, keys, "
      "whether copies are joint, steps, offsets and values of their items, makespan in ns, "
      "violation, evaluations).");
}

}  // namespace heteroplace::bind
