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

void InitProblem(model::Problem* self, Ints run_ns, Ints device_memory, Ints unit_offsets,
                 Ints unit_values, Ints weight_bytes, Ints workspace_bytes, Ints task_group,
                 Ints tensor_bytes, Ints producer, Ints is_output, Ints read_offsets,
                 Ints read_values, Ints memory_bytes, Ints link_bandwidth, Ints link_latency_ns,
                 Ints link_resource_offsets, Ints link_resource_values, Ints route_offsets,
                 Ints route_links, int host, bool frees_tensors, std::optional<Ints> batch_sizes,
                 std::optional<Ints> batch_run_ns, std::optional<Ints> measured_offsets,
                 std::optional<Ints> measured_bytes, std::optional<Ints> measured_ns,
                 std::optional<Ints> is_shared, std::optional<Ints> adds,
                 std::optional<Ints> state_of, std::optional<Ints> named_offsets,
                 std::optional<Ints> named_values, std::optional<Ints> named_bytes,
                 std::optional<Ints> buffer_of, std::optional<Ints> buffer_bytes) {
  model::Problem problem;
  problem.run_ns = ToWide(run_ns);
  problem.device_memory = ToNarrow(device_memory);
  problem.device_units = ToCsr(unit_offsets, unit_values);
  problem.weight_bytes = ToWide(weight_bytes);
  problem.workspace_bytes = ToWide(workspace_bytes);
  problem.task_group = ToNarrow(task_group);
  problem.tensor_bytes = ToWide(tensor_bytes);
  problem.producer = ToNarrow(producer);
  problem.is_output = ToNarrow<uint8_t>(is_output);
  problem.task_reads = ToCsr(read_offsets, read_values);
  problem.memory_bytes = ToWide(memory_bytes);
  problem.link_bandwidth = ToWide(link_bandwidth);
  problem.link_latency_ns = ToWide(link_latency_ns);
  problem.link_resources = ToCsr(link_resource_offsets, link_resource_values);
  problem.route_links = ToCsr(route_offsets, route_links);
  problem.host = host;
  if (batch_sizes) problem.batch_sizes = ToNarrow(*batch_sizes);
  if (batch_run_ns) problem.batch_run_ns = ToWide(*batch_run_ns);
  if (measured_offsets && measured_bytes && measured_ns) {
    problem.measured_bytes = ToWide(*measured_bytes);
    problem.measured_ns = ToWide(*measured_ns);
    problem.link_measured.offsets = ToNarrow(*measured_offsets);
    problem.link_measured.values.resize(problem.measured_bytes.size());
    std::iota(problem.link_measured.values.begin(), problem.link_measured.values.end(), 0);
  }
  if (is_shared) problem.values.is_shared = ToNarrow<uint8_t>(*is_shared);
  if (adds) problem.values.adds = ToNarrow<uint8_t>(*adds);
  if (state_of) problem.values.state_of = ToNarrow(*state_of);
  if (named_offsets && named_values && named_bytes) {
    problem.values.weights = ToCsr(*named_offsets, *named_values);
    problem.values.weight_bytes = ToWide(*named_bytes);
  }
  if (buffer_of && buffer_bytes) {
    problem.values.buffer_of = ToNarrow(*buffer_of);
    problem.values.buffer_bytes = ToWide(*buffer_bytes);
  }
  problem.Finish();
  new (self) model::Problem(frees_tensors ? std::move(problem) : problem.Static());
}

}  // namespace

void BindModel(nb::module_& module) {
  nb::class_<model::Problem>(module, "Problem",
                             "One graph, one cluster and the costs; see src/model/problem.h.")
      .def("__init__", &InitProblem, nb::kw_only(), nb::arg("run_ns"), nb::arg("device_memory"),
           nb::arg("unit_offsets"), nb::arg("unit_values"), nb::arg("weight_bytes"),
           nb::arg("workspace_bytes"), nb::arg("task_group"), nb::arg("tensor_bytes"),
           nb::arg("producer"), nb::arg("is_output"), nb::arg("read_offsets"),
           nb::arg("read_values"), nb::arg("memory_bytes"), nb::arg("link_bandwidth"),
           nb::arg("link_latency_ns"), nb::arg("link_resource_offsets"),
           nb::arg("link_resource_values"), nb::arg("route_offsets"), nb::arg("route_links"),
           nb::arg("host"), nb::arg("frees_tensors"), nb::arg("batch_sizes") = nb::none(),
           nb::arg("batch_run_ns") = nb::none(), nb::arg("measured_offsets") = nb::none(),
           nb::arg("measured_bytes") = nb::none(), nb::arg("measured_ns") = nb::none(),
           nb::arg("is_shared") = nb::none(), nb::arg("adds") = nb::none(),
           nb::arg("state_of") = nb::none(), nb::arg("named_offsets") = nb::none(),
           nb::arg("named_values") = nb::none(), nb::arg("named_bytes") = nb::none(),
           nb::arg("buffer_of") = nb::none(), nb::arg("buffer_bytes") = nb::none(),
           "Lists of lists come as offsets and values; their meaning is in src/model/problem.h.")
      .def_ro("counts_lifetimes", &model::Problem::counts_lifetimes, R"(
Whether some placement may be short of memory by the static rule.

Where none is, that rule says all about memory, and no plan is looked at by lifetime.
)");
}

}  // namespace heteroplace::bind
