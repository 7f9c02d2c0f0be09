// `_core.Session`: what a sequence of calls keeps, as arrays of numpy.
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "bind/bind.h"
#include "bind/executor.h"
#include "bind/port_arrays.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

/*! \brief The tensor of an input that sessions keep. \throws Error kExecution. */
const exec::Tensor& KeptTensor(const LoadedSession& self, const std::string& name) {
  const exec::Program& program = self.executor->local().program();
  for (const exec::KeptState& state : program.kept_states) {
    const exec::Port& port = program.inputs[state.input];
    if (port.name == name) return program.tensors[static_cast<size_t>(port.tensor)];
  }
  throw Error(ErrorKind::kExecution, "the session keeps no input '" + name + "'");
}

LoadedSession NewSession(LoadedExecutor& self) {
  self.Check("session");
  return {Unlocked([&] { return self.local().NewSession(); }), &self};
}

LoadedSession Fork(const LoadedSession& self) {
  LoadedSession other = NewSession(*self.executor);
  Unlocked([&] { other.core->CopyFrom(*self.core); });
  return other;
}

AnyArray Read(const LoadedSession& self, const std::string& name) {
  const exec::Tensor& tensor = KeptTensor(self, name);
  return NewArray(tensor, [&](void* data) { self.core->Read(tensor, data); });
}

void Write(const LoadedSession& self, const std::string& name, const AnyArray& given) {
  const auto array =
      ToArray<InputArray>(given, "`array` is not a C-contiguous array in host memory");
  const exec::Tensor& tensor = KeptTensor(self, name);
  CheckType("state '" + name + "': `array`", tensor, array);
  Unlocked([&] { self.core->Write(tensor, array.data()); });
}

}  // namespace

void BindSession(nb::module_& module, nb::class_<LoadedExecutor>& executor) {
  nb::class_<LoadedSession>(module, "Session", R"(
What a sequence of calls keeps, in the memories of the devices that use it.

Made by `Executor.session`; all zeros at first. One request at a time uses it.
)")
      .def("read", &Read, nb::arg("name"), "Return a copy of the state of an input.")
      .def("write", &Write, nb::arg("name"), nb::arg("array"), R"(
Set the state of an input.

Raises
------
ExecutionError
    It is no state, or the array has another type or shape.
)")
      .def(
          "clear", [](const LoadedSession& self) { Unlocked([&] { self.core->Clear(); }); },
          "Make all of it zeros.")
      .def("fork", &Fork, nb::keep_alive<0, 1>(), "Return another one with the same state.")
      .def_prop_ro(
          "num_bytes",
          [](const LoadedSession& self) {
            int64_t bytes = 0;
            for (const exec::Space& space : self.executor->local().program().spaces) {
              bytes += space.session_bytes;
            }
            return bytes;
          },
          "Size of the state, in all memories together.");
  executor.def("session", &NewSession, nb::keep_alive<0, 1>(),
               "Return the state of a new sequence of calls, for `begin`.");
}

}  // namespace heteroplace::bind
