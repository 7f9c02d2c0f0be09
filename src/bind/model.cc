// The problem: one graph, one cluster and the costs, from flat arrays.
#include <nanobind/stl/optional.h>

#include <numeric>
#include <optional>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "model/problem.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief Of each link: positions in the next two; bytes, and their times in ns. */
using MeasuredTransfers = std::tuple<Ints, Ints, Ints>;
/*! \brief Fields of model::SharedValues up to `weight_bytes`. */
using SharedArrays = std::tuple<Ints, Ints, Ints, Rows, Ints>;
/*! \brief The buffer of each tensor, -1: none; their bytes. */
using Buffers = std::pair<Ints, Ints>;

void InitProblem(model::Problem* self, const Ints& run_ns, const Ints& device_memory,
                 const Rows& device_units, const Ints& weight_bytes, const Ints& workspace_bytes,
                 const Ints& task_group, const Ints& tensor_bytes, const Ints& producer,
                 const Ints& is_output, const Rows& task_reads, const Ints& memory_bytes,
                 const Ints& link_bandwidth, const Ints& link_latency_ns,
                 const Rows& link_resources, const Rows& route_links, int host,
                 const Ints& batch_sizes, std::optional<Ints> batch_run_ns,
                 std::optional<MeasuredTransfers> measured, std::optional<SharedArrays> shared,
                 std::optional<Buffers> buffers, bool frees_tensors) {
  model::Problem problem;
  problem.run_ns = ToWide(run_ns);
  problem.device_memory = ToNarrow(device_memory);
  problem.device_units = ToCsr(device_units);
  problem.weight_bytes = ToWide(weight_bytes);
  problem.workspace_bytes = ToWide(workspace_bytes);
  problem.task_group = ToNarrow(task_group);
  problem.tensor_bytes = ToWide(tensor_bytes);
  problem.producer = ToNarrow(producer);
  problem.is_output = ToNarrow<uint8_t>(is_output);
  problem.task_reads = ToCsr(task_reads);
  problem.memory_bytes = ToWide(memory_bytes);
  problem.link_bandwidth = ToWide(link_bandwidth);
  problem.link_latency_ns = ToWide(link_latency_ns);
  problem.link_resources = ToCsr(link_resources);
  problem.route_links = ToCsr(route_links);
  problem.host = host;
  problem.batch_sizes = ToNarrow(batch_sizes);
  if (batch_run_ns) problem.batch_run_ns = ToWide(*batch_run_ns);
  if (measured) {
    const auto& [offsets, bytes, times] = *measured;
    problem.measured_bytes = ToWide(bytes);
    problem.measured_ns = ToWide(times);
    problem.link_measured.offsets = ToNarrow(offsets);
    problem.link_measured.values.resize(problem.measured_bytes.size());
    std::iota(problem.link_measured.values.begin(), problem.link_measured.values.end(), 0);
  }
  if (shared) {
    const auto& [is_shared, adds, state_of, weights, bytes] = *shared;
    problem.values.is_shared = ToNarrow<uint8_t>(is_shared);
    problem.values.adds = ToNarrow<uint8_t>(adds);
    problem.values.state_of = ToNarrow(state_of);
    problem.values.weights = ToCsr(weights);
    problem.values.weight_bytes = ToWide(bytes);
  }
  if (buffers) {
    problem.values.buffer_of = ToNarrow(buffers->first);
    problem.values.buffer_bytes = ToWide(buffers->second);
  }
  problem.Finish();
  new (self) model::Problem(frees_tensors ? std::move(problem) : problem.Static());
}

}  // namespace

void BindModel(nb::module_& module) {
  nb::class_<model::Problem>(module, "Problem",
                             "One graph, one cluster and the costs; see src/model/problem.h.")
      .def("__init__", &InitProblem, nb::kw_only(), nb::arg("run_ns"), nb::arg("device_memory"),
           nb::arg("device_units"), nb::arg("weight_bytes"), nb::arg("workspace_bytes"),
           nb::arg("task_group"), nb::arg("tensor_bytes"), nb::arg("producer"),
           nb::arg("is_output"), nb::arg("task_reads"), nb::arg("memory_bytes"),
           nb::arg("link_bandwidth"), nb::arg("link_latency_ns"), nb::arg("link_resources"),
           nb::arg("route_links"), nb::arg("host"), nb::arg("batch_sizes"),
           nb::arg("batch_run_ns").none(), nb::arg("measured").none(), nb::arg("shared").none(),
           nb::arg("buffers").none(), nb::arg("frees_tensors"),
           "Lists of lists come as offsets and values; their meaning is in src/model/problem.h.")
      .def_ro("counts_lifetimes", &model::Problem::counts_lifetimes, R"(
Whether some placement may be short of memory by the static rule.

Where none is, that rule says all about memory, and no plan is looked at by lifetime.
)");
}

}  // namespace heteroplace::bind
