// `_core.Executor`: conversions between numpy and the executor.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bind/executor_source.h"
#include "exec/engine/executor.h"
#include "support/error.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using InputArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using OutputArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

/*! \brief numpy's type of a tensor: bool has 8 bits there, and bfloat16 passes as its bits. */
exec::DLDataType ArrayType(const exec::DLDataType& dtype) {
  if (dtype.code == exec::kDLUInt && dtype.bits == 1) return {exec::kDLBool, 8, 1};
  if (dtype.code == exec::kDLBfloat) return {exec::kDLUInt, dtype.bits, 1};
  return dtype;
}

/*! \brief The tensor's own type where an array has numpy's form of it; else the array's. */
exec::DLDataType TensorType(const nb::dlpack::dtype& array, const exec::DLDataType& expected) {
  const exec::DLDataType form = ArrayType(expected);
  if (array.code == form.code && array.bits == form.bits && array.lanes == 1) return expected;
  return {array.code, array.bits, array.lanes};
}

template <typename Array>
std::vector<int64_t> Shape(const Array& array) {
  std::vector<int64_t> shape;
  for (size_t i = 0; i < array.ndim(); ++i) shape.push_back(static_cast<int64_t>(array.shape(i)));
  return shape;
}

/*! \brief What a method of the executor measures in so many runs, as an array; without the GIL. */
template <std::vector<int64_t> (exec::Executor::*kMeasure)(int64_t, const exec::Limit&)>
NumpyInts TimeRuns(exec::Executor& executor, int64_t num_runs) {
  const exec::Limit limit = LimitOf({});
  return ToNumpy(Unlocked([&] { return (executor.*kMeasure)(num_runs, limit); }));
}

/*! \brief An executor, whose own slot may have to be waited for, as a request, which has one. */
struct OwnSlot {
  exec::Executor& executor;
  exec::Limit limit = LimitOf({});

  const exec::Program& program() const { return executor.program(); }
  const exec::Tensor& OutputTensor(const std::string& name) const {
    return executor.OutputTensor(name);
  }
  void SetInput(const std::string& name, const exec::DLDataType& dtype,
                const std::vector<int64_t>& shape, const void* data) const {
    executor.SetInput(name, dtype, shape, data, limit);
  }
  void GetOutput(const std::string& name, void* data) const {
    executor.GetOutput(name, data, limit);
  }
};

exec::Request& SlotOf(exec::Request& request) { return request; }
OwnSlot SlotOf(exec::Executor& executor) { return {executor}; }

/*! \brief Sets an input of an executor or of a request. */
template <typename Target>
void SetInput(Target& owner, const std::string& name, const InputArray& array) {
  auto&& target = SlotOf(owner);
  // An unknown name is told by SetInput, whatever the type.
  exec::DLDataType dtype{array.dtype().code, array.dtype().bits, array.dtype().lanes};
  const exec::Program& program = target.program();
  for (const exec::Port& port : program.inputs) {
    if (port.name == name) {
      dtype = TensorType(array.dtype(), program.tensors[static_cast<size_t>(port.tensor)].dtype);
    }
  }
  const std::vector<int64_t> shape = Shape(array);
  const void* data = array.data();
  Unlocked([&] { target.SetInput(name, dtype, shape, data); });
}

/*! \brief A copy of an output of an executor or of a request. */
template <typename Target>
nb::ndarray<nb::numpy> NewOutput(Target& owner, const std::string& name) {
  auto&& target = SlotOf(owner);
  const exec::Tensor& tensor = target.OutputTensor(name);
  const exec::DLDataType type = ArrayType(tensor.dtype);
  auto* bytes = new std::vector<char>(static_cast<size_t>(std::max<int64_t>(tensor.bytes, 1)));
  nb::capsule keeper(bytes, [](void* p) noexcept { delete static_cast<std::vector<char>*>(p); });
  std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  Unlocked([&] { target.GetOutput(name, bytes->data()); });
  return nb::ndarray<nb::numpy>(bytes->data(), shape.size(), shape.data(), keeper, nullptr,
                                nb::dlpack::dtype{type.code, type.bits, 1});
}

/*! \brief The same into an array of the caller's. */
template <typename Target>
void FillOutput(Target& owner, const std::string& name, const OutputArray& out) {
  auto&& target = SlotOf(owner);
  const exec::Tensor& tensor = target.OutputTensor(name);
  const exec::DLDataType dtype = TensorType(out.dtype(), tensor.dtype);
  const bool is_same_type = dtype.code == tensor.dtype.code && dtype.bits == tensor.dtype.bits;
  if (!is_same_type || Shape(out) != tensor.shape) {
    throw Error(ErrorKind::kExecution, "output '" + name + "': `out` is " +
                                           exec::DescribeTensor(dtype, Shape(out)) + ", expected " +
                                           exec::DescribeTensor(tensor.dtype, tensor.shape));
  }
  void* data = out.data();
  Unlocked([&] { target.GetOutput(name, data); });
}

/*! \brief (name, type, shape) of inputs or outputs; the type is numpy's name for it. */
std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>> DescribePorts(
    const exec::Executor& executor, const std::vector<exec::Port>& ports) {
  std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>> specs;
  for (const exec::Port& port : ports) {
    const exec::Tensor& tensor = executor.program().tensors[static_cast<size_t>(port.tensor)];
    specs.emplace_back(port.name, exec::TypeName(tensor.dtype), tensor.shape);
  }
  return specs;
}

void MakeExecutor(exec::Executor* place, const std::string& libtvm_path,
                  const std::string& library_path, const std::string& program_text,
                  uintptr_t module, const std::optional<BlobArray>& blob, int max_in_flight,
                  std::optional<bool> helping, bool cuda_graphs, bool cuda_words,
                  std::shared_ptr<exec::Transport> transport) {
  exec::ExecutorSource source = SourceOf(libtvm_path, library_path, program_text, blob,
                                         max_in_flight, helping, cuda_graphs, cuda_words);
  source.module = reinterpret_cast<exec::TVMModuleHandle>(module);
  source.transport = std::move(transport);
  Unlocked([&] { new (place) exec::Executor(source); });
}

std::unique_ptr<exec::Request> Begin(exec::Executor& executor, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  return Unlocked([&] { return executor.Begin(limit); });
}

void Run(exec::Executor& executor, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  Unlocked([&] { executor.Run(limit); });
}

void Submit(exec::Request& request, std::optional<double> timeout_s, bool is_waited) {
  const exec::Limit limit = LimitOf(timeout_s);
  Unlocked([&] { request.Submit(limit, is_waited); });
}

bool Wait(exec::Request& request, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  return Unlocked([&] { return request.Wait(limit); });
}

void Finish(exec::Request& request, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  Unlocked([&] { request.Finish(limit); });
}

std::pair<NumpyInts, NumpyInts> RunTimed(exec::Executor& executor) {
  std::vector<int64_t> begin, end;
  const exec::Limit limit = LimitOf({});
  for (const exec::Executor::Span& span : Unlocked([&] { return executor.RunTimed(limit); })) {
    begin.push_back(span.start_ns);
    end.push_back(span.finish_ns);
  }
  return {ToNumpy(std::move(begin)), ToNumpy(std::move(end))};
}

std::pair<NumpyInts, NumpyInts> Sample(exec::Executor& executor, int64_t num_samples,
                                       int64_t num_calls, bool is_cold) {
  std::vector<int64_t> walls, cpus;
  const exec::Limit limit = LimitOf({});
  for (const exec::KernelSample& found :
       Unlocked([&] { return executor.Sample(num_samples, num_calls, is_cold, limit); })) {
    walls.push_back(found.wall_ns);
    cpus.push_back(found.cpu_ns);
  }
  return {ToNumpy(std::move(walls)), ToNumpy(std::move(cpus))};
}

std::optional<int64_t> CoreToCoreNs(exec::Executor& executor) {
  const exec::Limit limit = LimitOf({});
  return Unlocked([&] { return executor.CoreToCoreNs(limit); });
}

std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> DescribeMemory(
    exec::Executor& executor) {
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> rows;
  const exec::Limit limit = LimitOf({});
  const std::vector<exec::SpaceBytes> bytes = Unlocked([&] { return executor.MemoryBytes(limit); });
  for (size_t space = 0; space < bytes.size(); ++space) {
    rows.emplace_back(executor.program().spaces[space].name, bytes[space].arena,
                      bytes[space].weights, bytes[space].workspace);
  }
  return rows;
}

void BindMeasuring(nb::class_<exec::Executor>& executor) {
  executor
      .def("run_timed", &RunTimed,
           "Run once: start and finish of every instruction in ns, [num_instructions].")
      .def("profile", &TimeRuns<&exec::Executor::Profile>, nb::arg("num_runs"),
           "ns of every instruction in each run, [num_instructions * num_runs].")
      .def("benchmark", &TimeRuns<&exec::Executor::Benchmark>, nb::arg("num_runs"),
           "Wall ns of each of some runs in a row, [num_runs].")
      .def("profile_cpu", &TimeRuns<&exec::Executor::ProfileCpu>, nb::arg("num_runs"),
           "Processor ns of every instruction, [num_instructions].")
      .def("sample", &Sample, nb::arg("num_samples"), nb::arg("num_calls"), nb::arg("is_cold"),
           "Wall and processor ns of samples of the only kernel call, [num_samples].")
      .def("core_to_core_ns", &CoreToCoreNs,
           "ns for a cache line to go between the first two CPU queues; None with fewer.");
}

/*! \brief What an executor and a request share: inputs and outputs. */
template <typename Target>
void BindPorts(nb::class_<Target>& target) {
  target
      .def("set_input", &SetInput<Target>, nb::arg("name"), nb::arg("array").noconvert(),
           nb::sig(
               "def set_input(self, name: str, array: numpy.typing.NDArray[typing.Any]) -> None"),
           "Copy an array of exactly the input's type and shape into an input.")
      .def("get_output", &NewOutput<Target>, nb::arg("name"),
           nb::sig("def get_output(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           "A copy of an output of the last run.")
      .def("fill_output", &FillOutput<Target>, nb::arg("name"), nb::arg("out").noconvert(),
           nb::sig(
               "def fill_output(self, name: str, out: numpy.typing.NDArray[typing.Any]) -> None"),
           "Copy an output of the last run into an array of exactly its type and shape.");
}

void BindRequest(nb::module_& module) {
  nb::class_<exec::Request> request(module, "Request",
                                    "One call of a program; see src/exec/requests/request.h.");
  BindPorts(request);
  request
      .def("submit", &Submit, nb::arg("timeout_s").none() = nb::none(),
           nb::arg("is_waited") = false,
           "Hand it to the workers; a caller who waits for it may be one of them.")
      .def("wait", &Wait, nb::arg("timeout_s").none() = nb::none(),
           "Wait for the end; false after so many seconds, and it goes on.")
      .def("finish", &Finish, nb::arg("timeout_s").none() = nb::none(),
           "Wait for the end; after so many seconds it is cancelled. Raises what it failed of.")
      .def_prop_ro("trace_number", &exec::Request::trace_number,
                   "Its number in the recording that it was submitted in; -1: there was none.")
      .def(
          "cancel", [](exec::Request& self, const std::string& why) { self.Cancel(why); },
          nb::arg("why"), "End it early; of any thread.")
      .def("close", &exec::Request::Close, "Give its slot back; cancel it if it is in flight.");
}

}  // namespace

void BindExec(nb::module_& module) {
  BindRequest(module);
  nb::class_<exec::Executor> executor(module, "Executor",
                                      "A loaded program; see src/exec/engine/executor.h.");
  executor
      .def("__init__", &MakeExecutor, nb::arg("libtvm_path"), nb::arg("library_path"),
           nb::arg("program_text"), nb::arg("module"), nb::arg("blob").none(),
           nb::arg("max_in_flight") = 1, nb::arg("helping").none() = nb::none(),
           nb::arg("cuda_graphs") = false, nb::arg("cuda_words") = true,
           nb::arg("transport").none() = nb::none(),
           "Load a program; see ExecutorSource. `module`: a handle of TVM, or 0.")
      .def("begin", &Begin, nb::arg("timeout_s").none() = nb::none(), nb::keep_alive<0, 1>(),
           "A request in a slot of its own; None if none is free after so many seconds.")
      .def("run", &Run, nb::arg("timeout_s").none() = nb::none(), "Run once, in the first slot.")
      .def_prop_ro("was_last_in_first", &exec::Executor::WasLastInFirst,
                   "Whether the last run of all was, or is, in the first slot.")
      .def_prop_ro("max_in_flight", &exec::Executor::max_in_flight, "Most requests in flight.")
      .def_prop_ro("is_helping", &exec::Executor::is_helping,
                   "Whether cores that wait do parts of others' kernels.")
      .def(
          "inputs",
          [](const exec::Executor& self) { return DescribePorts(self, self.program().inputs); },
          "(name, type, shape) of each.")
      .def(
          "outputs",
          [](const exec::Executor& self) { return DescribePorts(self, self.program().outputs); },
          "(name, type, shape) of each.")
      .def(
          "instructions",
          [](const exec::Executor& self) { return DescribeInstructions(self.program()); },
          "(queue, position, step, kernel or \"\") of each.")
      .def(
          "queues", [](const exec::Executor& self) { return DescribeQueues(self.program()); },
          "Names.")
      .def("memory_bytes", &DescribeMemory,
           "(space, values, weights, scratch memory) in bytes, of each.");
  BindPorts(executor);
  BindMeasuring(executor);
}

}  // namespace heteroplace::bind
