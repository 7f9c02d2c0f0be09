// What an executor measures: times of instructions and runs, samples of a kernel, memory.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <optional>
#include <utility>
#include <vector>

#include "bind/executor.h"
#include "bind/values.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using exec::Limit;
using MemoryUse = Instance<"heteroplace.model.memory_use.memory.MemoryUse">;
using IntPair = std::pair<NumpyInts, NumpyInts>;

IntPair RunTimed(LoadedExecutor& self) {
  std::vector<int64_t> begin, end;
  for (const exec::Executor::Span& span :
       self.Call("run", [&](const Limit& limit) { return self.RunTimed(limit); })) {
    begin.push_back(span.start_ns);
    end.push_back(span.finish_ns);
  }
  return {ToNumpy(std::move(begin)), ToNumpy(std::move(end))};
}

NumpyInts ProfileCpu(LoadedExecutor& self, int64_t num_runs) {
  return ToNumpy(self.Call("profile_cpu",
                           [&](const Limit& limit) { return self.ProfileCpu(num_runs, limit); }));
}

Numpy<int64_t, nb::ndim<2>> ProfileRuns(LoadedExecutor& self, int64_t num_runs) {
  const std::vector<int64_t> times =
      self.Call("profile_runs", [&](const Limit& limit) { return self.Profile(num_runs, limit); });
  const size_t runs = static_cast<size_t>(num_runs), steps = times.size() / runs;
  std::vector<int64_t> by_run(times.size());
  for (size_t i = 0; i < times.size(); ++i) by_run[i % runs * steps + i / runs] = times[i];
  return ToNumpy<nb::ndim<2>>(std::move(by_run), steps);
}

NumpyInts Benchmark(LoadedExecutor& self, int64_t num_runs) {
  return ToNumpy(self.Call(
      "benchmark", [&](const Limit& limit) { return self.local().Benchmark(num_runs, limit); }));
}

IntPair Sample(LoadedExecutor& self, int64_t num_samples, int64_t num_calls, bool is_cold) {
  self.CheckAlone(
      "a kernel is sampled in a process alone, not as one of several ranks; load a file of one "
      "host");
  std::vector<int64_t> walls, cpus;
  for (const exec::KernelSample& taken : self.Call("sample", [&](const Limit& limit) {
         return self.local().Sample(num_samples, num_calls, is_cold, limit);
       })) {
    walls.push_back(taken.wall_ns);
    cpus.push_back(taken.cpu_ns);
  }
  return {ToNumpy(std::move(walls)), ToNumpy(std::move(cpus))};
}

std::vector<std::pair<int64_t, int64_t>> CopiedBytes(LoadedExecutor& self) {
  self.CheckAlone(
      "copied bytes are counted in a process alone, not over several ranks; count those of a "
      "trace, or load a file of one host");
  return self.local().CopiedBytes();
}

std::optional<int64_t> CoreToCoreNs(LoadedExecutor& self) {
  return self.Call("core_to_core_ns",
                   [&](const Limit& limit) { return self.local().CoreToCoreNs(limit); });
}

nb::typed<nb::dict, nb::str, MemoryUse> MemoryBytes(LoadedExecutor& self) {
  const auto all = self.Call("memory", [&](const Limit& limit) { return self.MemoryBytes(limit); });
  nb::typed<nb::dict, nb::str, MemoryUse> uses;
  for (size_t host = 0; host < all.size(); ++host) {
    for (size_t space = 0; space < all[host].size(); ++space) {
      const exec::SpaceBytes& bytes = all[host][space];
      uses[self.ProgramOf(host).spaces[space].name.c_str()] =
          MemoryUse::Of(bytes.weights, bytes.arena, bytes.workspace).object;
    }
  }
  return uses;
}

void BindProfiles(nb::class_<LoadedExecutor>& executor) {
  executor
      .def("profile_cpu", &ProfileCpu, nb::arg("num_runs"), R"(
Measure the processor time of every instruction in place, over several runs.

Returns
-------
Median ns of each element of `instructions`, of the thread of its queue; what the reading
of the clock takes is subtracted. The spinning of a worker that helps is part of it.

Raises
------
ExecutionError
    The program has an asynchronous queue.
)")
      .def("profile_runs", &ProfileRuns, nb::arg("num_runs"), R"(
Measure every instruction in place, in each of several runs.

Returns
-------
ns, [num_runs, num_instructions]; instructions as in `instructions`.
)")
      .def("sample", &Sample, nb::arg("num_samples"), nb::arg("num_calls"),
           nb::arg("is_cold") = false, R"(
Measure the only kernel call of the program, over and over.

Parameters
----------
num_samples, num_calls
    How many samples, and of how many calls each consists.
is_cold
    Before each call all its arguments (weights and results too) are dropped from the caches
    of all cores, which is not counted in its time. Its code and scratch memory stay.

Returns
-------
Wall ns and processor ns (all workers' threads; 0 on an asynchronous queue) of each sample,
of all its calls together.

Raises
------
ExecutionError
    The program has more calls than one, an input has no value, the kernel failed, the
    caches of an asynchronous device should be emptied, or this is one of several ranks.
)");
}

}  // namespace

void BindMeasuring(nb::class_<LoadedExecutor>& executor) {
  BindProfiles(executor);
  executor
      .def("run_timed", &RunTimed, R"(
Run once and measure every instruction.

Returns
-------
start_ns, finish_ns
    One entry per element of `instructions`, in ns from the start of the run. A span begins
    after the instruction's waits. On CUDA queues they are times of the device, tied to the
    host's clock at the start of the run (to within some microseconds). One of several ranks
    records for it, and so may not be recording.
)")
      .def("benchmark", &Benchmark, nb::arg("num_runs"), R"(
Run several times in a row, each started by the worker that ended the last.

Returns
-------
Wall ns of each run, from its start to the end of its last worker.
)")
      .def("memory_bytes", &MemoryBytes, R"(
Return what the executor holds in each space, by name, after the runs so far.

Constants are there from the start, values for each request made so far. Workspace is what
the kernels have really used so far, core by core, and a GPU's scratch memory as a whole;
that of a module in memory is not in it. Waits until no request is in flight.
)")
      .def("copied_bytes", &CopiedBytes,
           "Return (step of the plan, bytes so far) of each copy; see `run.Executor.copied_bytes`. "
           "Each of several ranks refuses it.")
      .def("core_to_core_ns", &CoreToCoreNs, R"(
Measure how long a cache line takes between the first two CPU workers, in ns.

Returns
-------
The median, or None with fewer than two CPU queues. Above 100 ns the two cores are bad
neighbours at the moment, and times of runs on both are not representative.
)");
}

}  // namespace heteroplace::bind
