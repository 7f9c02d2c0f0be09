// Inputs and outputs of programs as arrays of numpy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bind/executor.h"
#include "bind/values.h"
#include "support/error.h"

namespace heteroplace::bind {

using InputArray = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
using AnyArray = Instance<"numpy.typing.NDArray[typing.Any]">;
using PortSpec = Instance<"heteroplace.native.execute.PortSpec">;
using OutputArray = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;

/*! \brief An array of Python as one that can be read or written. \throws TypeError. */
template <typename Array>
Array ToArray(const AnyArray& given, const char* fault) {
  Array array;
  if (!nanobind::try_cast(given.object, array, false)) throw nanobind::type_error(fault);
  return array;
}

/*! \brief numpy's type of a tensor: bool has 8 bits there, and bfloat16 passes as its bits. */
inline exec::DLDataType ArrayType(const exec::DLDataType& dtype) {
  if (dtype.code == exec::kDLUInt && dtype.bits == 1) return {exec::kDLBool, 8, 1};
  if (dtype.code == exec::kDLBfloat) return {exec::kDLUInt, dtype.bits, 1};
  return dtype;
}

/*! \brief The tensor's own type where an array has numpy's form of it; else the array's. */
inline exec::DLDataType TensorType(const nanobind::dlpack::dtype& array,
                                   const exec::DLDataType& expected) {
  const exec::DLDataType form = ArrayType(expected);
  if (array.code == form.code && array.bits == form.bits && array.lanes == 1) return expected;
  return {array.code, array.bits, array.lanes};
}

template <typename Array>
std::vector<int64_t> Shape(const Array& array) {
  std::vector<int64_t> shape;
  shape.reserve(array.ndim());
  for (size_t i = 0; i < array.ndim(); ++i) shape.push_back(static_cast<int64_t>(array.shape(i)));
  return shape;
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

inline exec::Request& SlotOf(LoadedRequest& request) { return *request.core; }
inline OwnSlot SlotOf(LoadedExecutor& executor) { return {executor.local()}; }

/*! \brief Sets an input of an executor or of a request; `kIsOwn`: of the process, which is not
 * checked. */
template <typename Target, bool kIsOwn = false>
void SetInput(Target& owner, const std::string& name, const AnyArray& given) {
  if (!kIsOwn) owner.Check("set_input");
  const auto array =
      ToArray<InputArray>(given, "`array` is not a C-contiguous array in host memory");
  auto&& target = SlotOf(owner);
  // SetInput reports an unknown name, whatever the type.
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

/*! \brief Refuses an array of another type or shape. \throws Error kExecution. */
template <typename Array>
void CheckType(const std::string& what, const exec::Tensor& tensor, const Array& array) {
  const exec::DLDataType dtype = TensorType(array.dtype(), tensor.dtype);
  const bool is_same_type = dtype.code == tensor.dtype.code && dtype.bits == tensor.dtype.bits;
  if (is_same_type && Shape(array) == tensor.shape) return;
  throw Error(ErrorKind::kExecution, what + " is " + exec::DescribeTensor(dtype, Shape(array)) +
                                         ", expected " +
                                         exec::DescribeTensor(tensor.dtype, tensor.shape));
}

/*! \brief A new array of a tensor's type and shape, which `read` fills. */
template <typename ReadTo>
AnyArray NewArray(const exec::Tensor& tensor, const ReadTo& read) {
  const exec::DLDataType type = ArrayType(tensor.dtype);
  auto* bytes = new std::vector<char>(static_cast<size_t>(std::max<int64_t>(tensor.bytes, 1)));
  nanobind::capsule keeper(bytes,
                           [](void* p) noexcept { delete static_cast<std::vector<char>*>(p); });
  std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  Unlocked([&] { read(bytes->data()); });
  return {nanobind::cast(
      nanobind::ndarray<nanobind::numpy>(bytes->data(), shape.size(), shape.data(), keeper, nullptr,
                                         nanobind::dlpack::dtype{type.code, type.bits, 1}))};
}

/*! \brief The same, into an array of the caller's if there is one. */
template <typename Target, bool kIsOwn = false>
AnyArray GetOutput(Target& owner, const std::string& name, const std::optional<AnyArray>& out) {
  if (!kIsOwn) owner.Check("get_output");
  auto&& target = SlotOf(owner);
  if (!out) {
    return NewArray(target.OutputTensor(name), [&](void* data) { target.GetOutput(name, data); });
  }
  const auto array =
      ToArray<OutputArray>(*out, "`out` is not a C-contiguous array in host memory to write to");
  CheckType("output '" + name + "': `out`", target.OutputTensor(name), array);
  void* data = array.data();
  Unlocked([&] { target.GetOutput(name, data); });
  return *out;
}

/*! \brief Inputs or outputs of the program of this process; the type is numpy's name for it. */
template <std::vector<exec::Port> exec::Program::* kPorts>
auto DescribePorts(LoadedExecutor& self) {
  const exec::Program& program = self.local().program();
  std::vector<PortSpec> specs;
  for (const exec::Port& port : program.*kPorts) {
    const exec::Tensor& tensor = program.tensors[static_cast<size_t>(port.tensor)];
    specs.push_back(PortSpec::Of(port.name, exec::TypeName(tensor.dtype), ToTuple(tensor.shape)));
  }
  return ToTuple(specs);
}

}  // namespace heteroplace::bind
