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

/*! \brief An input that sessions keep. */
struct KeptInput {
  /*! \brief Position among all that they keep. */
  size_t state;
  const exec::Tensor& tensor;
};

/*! \throws Error kExecution if sessions keep no such input. */
KeptInput FindKept(const LoadedSession& self, const std::string& name) {
  const exec::Program& program = self.executor->local().program();
  for (size_t i = 0; i < program.kept_states.size(); ++i) {
    const exec::Port& port = program.inputs[program.kept_states[i].input];
    if (port.name == name) return {i, program.tensors[static_cast<size_t>(port.tensor)]};
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
  const KeptInput kept = FindKept(self, name);
  return NewArray(kept.tensor, [&](void* data) { self.core->Read(kept.state, data); });
}

void Write(const LoadedSession& self, const std::string& name, const AnyArray& given) {
  const auto array =
      ToArray<InputArray>(given, "`array` is not a C-contiguous array in host memory");
  const KeptInput kept = FindKept(self, name);
  CheckType("state '" + name + "': `array`", kept.tensor, array);
  Unlocked([&] { self.core->Write(kept.state, array.data()); });
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
          "num_bytes", [](const LoadedSession& self) { return self.core->num_bytes(); },
          "Size of the state, at all places that programs have it at.");
  executor.def("session", &NewSession, nb::keep_alive<0, 1>(),
               "Return the state of a new sequence of calls, for `begin`.");
}

}  // namespace heteroplace::bind
