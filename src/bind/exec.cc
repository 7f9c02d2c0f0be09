// `_core.Executor`: conversions between numpy and the executor.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <new>
#include <utility>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "exec/run/executor.h"
#include "support/error.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using InputArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using OutputArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using BlobArray = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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
template <std::vector<int64_t> (exec::Executor::*kMeasure)(int64_t)>
NumpyInts TimeRuns(exec::Executor& executor, int64_t num_runs) {
  return ToNumpy(Unlocked([&] { return (executor.*kMeasure)(num_runs); }));
}

void SetInput(exec::Executor& executor, const std::string& name, const InputArray& array) {
  // An unknown name is told by SetInput, whatever the type.
  exec::DLDataType dtype{array.dtype().code, array.dtype().bits, array.dtype().lanes};
  for (const exec::Port& port : executor.program().inputs) {
    if (port.name == name) {
      const exec::Tensor& tensor = executor.program().tensors[static_cast<size_t>(port.tensor)];
      dtype = TensorType(array.dtype(), tensor.dtype);
    }
  }
  const std::vector<int64_t> shape = Shape(array);
  nb::gil_scoped_release release;
  executor.SetInput(name, dtype, shape, array.data());
}

nb::ndarray<nb::numpy> NewOutput(exec::Executor& executor, const std::string& name) {
  const exec::Tensor& tensor = executor.OutputTensor(name);
  const exec::DLDataType type = ArrayType(tensor.dtype);
  auto* bytes = new std::vector<char>(static_cast<size_t>(std::max<int64_t>(tensor.bytes, 1)));
  nb::capsule owner(bytes, [](void* p) noexcept { delete static_cast<std::vector<char>*>(p); });
  std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  {
    nb::gil_scoped_release release;
    executor.GetOutput(name, bytes->data());
  }
  return nb::ndarray<nb::numpy>(bytes->data(), shape.size(), shape.data(), owner, nullptr,
                                nb::dlpack::dtype{type.code, type.bits, 1});
}

void FillOutput(exec::Executor& executor, const std::string& name, const OutputArray& out) {
  const exec::Tensor& tensor = executor.OutputTensor(name);
  const exec::DLDataType dtype = TensorType(out.dtype(), tensor.dtype);
  const bool is_same_type = dtype.code == tensor.dtype.code && dtype.bits == tensor.dtype.bits;
  if (!is_same_type || Shape(out) != tensor.shape) {
    throw Error(ErrorKind::kExecution, "output '" + name + "': `out` is " +
                                           exec::DescribeTensor(dtype, Shape(out)) + ", expected " +
                                           exec::DescribeTensor(tensor.dtype, tensor.shape));
  }
  nb::gil_scoped_release release;
  executor.GetOutput(name, out.data());
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

/*! \brief (queue, index, step, kernel or "") of every instruction, in the order of the times. */
std::vector<std::tuple<int32_t, int32_t, int64_t, std::string>> DescribeInstructions(
    const exec::Executor& executor) {
  std::vector<std::tuple<int32_t, int32_t, int64_t, std::string>> rows;
  const exec::Program& program = executor.program();
  for (size_t q = 0; q < program.queues.size(); ++q) {
    for (size_t i = 0; i < program.queues[q].instructions.size(); ++i) {
      const exec::Instruction& at = program.queues[q].instructions[i];
      rows.emplace_back(static_cast<int32_t>(q), static_cast<int32_t>(i), at.step,
                        at.opcode == exec::Opcode::kCall
                            ? program.kernels[static_cast<size_t>(at.kernel)]
                            : std::string());
    }
  }
  return rows;
}

void MakeExecutor(exec::Executor* place, const std::string& libtvm_path,
                  const std::string& library_path, const std::string& program_text,
                  uintptr_t module, const std::optional<BlobArray>& blob) {
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  source.program_text = program_text;
  source.module = reinterpret_cast<exec::TVMModuleHandle>(module);
  if (blob.has_value()) source.blob = {blob->data(), static_cast<int64_t>(blob->size())};
  nb::gil_scoped_release release;
  new (place) exec::Executor(source);
}

std::pair<NumpyInts, NumpyInts> RunTimed(exec::Executor& executor) {
  std::vector<int64_t> begin, end;
  for (const exec::Span& span : Unlocked([&] { return executor.RunTimed(); })) {
    begin.push_back(span.start_ns);
    end.push_back(span.finish_ns);
  }
  return {ToNumpy(std::move(begin)), ToNumpy(std::move(end))};
}

std::pair<NumpyInts, NumpyInts> Sample(exec::Executor& executor, int64_t num_samples,
                                       int64_t num_calls, bool is_cold) {
  std::vector<int64_t> walls, cpus;
  for (const exec::KernelSample& found :
       Unlocked([&] { return executor.Sample(num_samples, num_calls, is_cold); })) {
    walls.push_back(found.wall_ns);
    cpus.push_back(found.cpu_ns);
  }
  return {ToNumpy(std::move(walls)), ToNumpy(std::move(cpus))};
}

std::vector<std::string> DescribeQueues(const exec::Executor& executor) {
  std::vector<std::string> names;
  for (const exec::Queue& queue : executor.program().queues) names.push_back(queue.name);
  return names;
}

std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> DescribeMemory(
    exec::Executor& executor) {
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> rows;
  const std::vector<exec::SpaceBytes> bytes = executor.MemoryBytes();
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
      .def("core_to_core_ns", &exec::Executor::CoreToCoreNs,
           nb::call_guard<nb::gil_scoped_release>(),
           "ns for a cache line to go between the first two CPU queues; None with fewer.");
}

}  // namespace

void BindExec(nb::module_& module) {
  nb::class_<exec::Executor> executor(module, "Executor",
                                      "A loaded program; see src/exec/run/executor.h.");
  executor
      .def("__init__", &MakeExecutor, nb::arg("libtvm_path"), nb::arg("library_path"),
           nb::arg("program_text"), nb::arg("module"), nb::arg("blob").none(),
           nb::keep_alive<1, 6>(),  // the weights are used where they lie
           "Load a program; see ExecutorSource. `module`: a handle of TVM, or 0.")
      .def("set_input", &SetInput, nb::arg("name"), nb::arg("array").noconvert(),
           nb::sig(
               "def set_input(self, name: str, array: numpy.typing.NDArray[typing.Any]) -> None"),
           "Copy an array of exactly the input's type and shape into an input.")
      .def("run", &exec::Executor::Run, nb::call_guard<nb::gil_scoped_release>(), "Run once.")
      .def("get_output", &NewOutput, nb::arg("name"),
           nb::sig("def get_output(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           "A copy of an output of the last run.")
      .def("fill_output", &FillOutput, nb::arg("name"), nb::arg("out").noconvert(),
           nb::sig(
               "def fill_output(self, name: str, out: numpy.typing.NDArray[typing.Any]) -> None"),
           "Copy an output of the last run into an array of exactly its type and shape.")
      .def(
          "inputs",
          [](const exec::Executor& self) { return DescribePorts(self, self.program().inputs); },
          "(name, type, shape) of each.")
      .def(
          "outputs",
          [](const exec::Executor& self) { return DescribePorts(self, self.program().outputs); },
          "(name, type, shape) of each.")
      .def("instructions", &DescribeInstructions,
           "(queue, position, step, kernel or \"\") of each.")
      .def("queues", &DescribeQueues, "Names.")
      .def("memory_bytes", &DescribeMemory,
           "(space, values, weights, scratch memory) in bytes, of each.");
  BindMeasuring(executor);
}

}  // namespace heteroplace::bind
