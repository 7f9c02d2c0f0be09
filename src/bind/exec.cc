// `_core.Executor`, `_core.Request`: conversions between numpy and the executor.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <new>
#include <utility>

#include "bind/bind.h"
#include "bind/executor.h"
#include "bind/port_arrays.h"

namespace nb = nanobind;

namespace heteroplace::bind {

namespace {

using LoadedInstruction = Instance<"heteroplace.native.execute.LoadedInstruction">;

/*! \brief Every instruction, of all ranks, in the order of the times. */
auto DescribeInstructions(const LoadedExecutor& self) {
  const exec::Program& program = self.program();
  std::vector<LoadedInstruction> rows;
  for (size_t q = 0; q < program.queues.size(); ++q) {
    for (size_t i = 0; i < program.queues[q].instructions.size(); ++i) {
      const exec::Instruction& at = program.queues[q].instructions[i];
      std::optional<std::string> kernel;
      if (at.IsCall()) kernel = program.kernels[static_cast<size_t>(at.kernel)];
      rows.push_back(LoadedInstruction::Of(q, i, at.step, kernel));
    }
  }
  return ToTuple(rows);
}

auto DescribeQueues(const LoadedExecutor& self) {
  std::vector<std::string> names;
  for (const exec::Queue& queue : self.program().queues) names.push_back(queue.name);
  return ToTuple(names);
}

void MakeExecutor(LoadedExecutor* place, const std::string& libtvm_path,
                  const std::string& library_path, const std::string& program_text,
                  uintptr_t module, const std::optional<BlobArray>& blob, int max_in_flight,
                  std::optional<bool> helping, bool cuda_graphs, bool cuda_words, bool adapt,
                  std::shared_ptr<exec::Transport> transport) {
  exec::ExecutorSource source = SourceOf(libtvm_path, library_path, program_text, blob,
                                         max_in_flight, helping, cuda_graphs, cuda_words);
  // An address that TVM gave to Python. NOLINTNEXTLINE(performance-no-int-to-ptr)
  source.module = reinterpret_cast<exec::TVMModuleHandle>(module);
  source.serial = adapt ? exec::SerialRule::kWhereFaster : exec::SerialRule::kNever;
  source.transport = std::move(transport);
  Unlocked([&] { new (place) LoadedExecutor(source); });
}

std::optional<LoadedRequest> Begin(LoadedExecutor& self, std::optional<double> timeout_s,
                                   const LoadedSession* session) {
  const std::shared_ptr<exec::Session> kept = session == nullptr ? nullptr : session->core;
  std::unique_ptr<exec::Request> core = self.Call(
      "run", [&](const exec::Limit& limit) { return self.local().Begin(limit, kept); }, timeout_s);
  if (core == nullptr) return std::nullopt;
  return LoadedRequest{std::move(core), &self};
}

void Run(LoadedExecutor& self, std::optional<double> timeout_s) {
  self.Call("run", [&](const exec::Limit& limit) { self.local().Run(limit); }, timeout_s);
}

void Submit(LoadedRequest& self, std::optional<double> timeout_s, bool is_waited) {
  const exec::Limit limit = LimitOf(timeout_s);
  Unlocked([&] { self.core->Submit(limit, is_waited); });
}

bool Wait(LoadedRequest& self, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  return Unlocked([&] { return self.core->Wait(limit); });
}

void Finish(LoadedRequest& self, std::optional<double> timeout_s) {
  const exec::Limit limit = LimitOf(timeout_s);
  try {
    Unlocked([&] { self.core->Finish(limit); });
  } catch (const Error& error) {
    self.executor->NameFailure(error);
    throw;
  }
}

void BindRequest(nb::module_& module) {
  nb::class_<LoadedRequest>(module, "Request", R"(
One call of a program, from its inputs to its outputs, in memory of its own.

Made by `Executor.begin`. One thread at a time may use it (a second one is refused with an
ExecutionError), but any thread may cancel it. It holds its memory until it is closed, or
dropped; `with` closes it.
)")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Request"))
      .def(
          "__exit__", [](LoadedRequest& self, const nb::args&) { self.core->Close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("set_input", &SetInput<LoadedRequest>, nb::arg("name"), nb::arg("array"), R"(
Copy an array into an input of this request; see `Executor.set_input`.

It stays for later submissions; state does not, after one that failed.
)")
      .def("submit", &Submit, nb::arg("timeout_s") = nb::none(), nb::kw_only(),
           nb::arg("is_waited") = false, R"(
Hand it to the workers, after all that were submitted before; it may be done again.

While somebody measures it waits, up to `timeout_s`.

An input that was not set has the value that `Executor.set_input`, or the last request in
the executor's first slot, gave it.

`is_waited`: `finish` follows at once. With no `timeout_s` the calling thread then does the
request of a program of one queue itself, which may be over when this returns.

Raises
------
ExecutionError
    An input has no value, the executor cannot be used, or the time is up.
)")
      .def("wait", &Wait, nb::arg("timeout_s") = nb::none(),
           "Wait for the end, in whatever way; return False if it goes on after `timeout_s`.")
      .def("finish", &Finish, nb::arg("timeout_s") = nb::none(), R"(
Wait for the end; after `timeout_s`, or at Ctrl-C, the request is cancelled.

Raises
------
ExecutionError
    A step failed, the request was cancelled, or it did not end in time. If a step does not
    end even then (told 0.1 s after the limit), the executor refuses all calls until it
    does. Of several ranks it names the rank that failed.
)")
      .def_prop_ro(
          "trace_number", [](const LoadedRequest& self) { return self.core->trace_number(); },
          "Its number in the recording that was on when it was last submitted; -1: none.")
      .def(
          "cancel", [](LoadedRequest& self, const std::string& why) { self.core->Cancel(why); },
          nb::arg("why") = "the request was cancelled",
          "End it early if it is in flight; `finish` then raises with this text. Any thread.")
      .def("get_output", &GetOutput<LoadedRequest>, nb::arg("name"), nb::arg("out") = nb::none(),
           "Copy an output into `out`, or into a new array; see `Executor.get_output`.")
      .def(
          "close", [](LoadedRequest& self) { self.core->Close(); },
          "Give the memory back; a request in flight is cancelled, and not waited for.");
}

/*! \brief Inputs and outputs of an executor; those of state on a rank's own host are unchecked. */
void BindPorts(nb::class_<LoadedExecutor>& executor) {
  executor
      .def("set_input", &SetInput<LoadedExecutor>, nb::arg("name"), nb::arg("array"), R"(
Copy an array into an input, where it stays until it is set again.

Parameters
----------
name
    One of `inputs`.
array
    Of exactly the input's type and shape, C-contiguous.

Raises
------
ExecutionError
    No such input, or another type or shape.
TypeError
    `array` is not a C-contiguous array in host memory.
)")
      .def("get_output", &GetOutput<LoadedExecutor>, nb::arg("name"), nb::arg("out") = nb::none(),
           R"(
Copy an output of the last run into `out`, or into a new array.

Raises
------
ExecutionError
    No such output, no successful run yet, or `out` has another type or shape.
)")
      .def("set_own_input", &SetInput<LoadedExecutor, true>, nb::arg("name"), nb::arg("array"),
           "As `set_input`, of state on the host of this process, whichever rank feeds the model.")
      .def("get_own_output", &GetOutput<LoadedExecutor, true>, nb::arg("name"),
           nb::arg("out") = nb::none(), "As `get_output`, of state on the host of this process.");
}

constexpr const char* kExecutorText = R"(
A loaded program, ready to run many times.

Any thread may call any method. `begin` gives each caller a request of its own; `set_input`,
`run` and `get_output` share one, a call at a time. What measures waits until no request is in
flight. A failed request leaves the executor and all other requests as they are. In the child
of a fork it works on, unless a request was in flight or held at the fork, or it uses a GPU.
Nothing of Python takes part in a run; the interpreter's lock is released.
)";

constexpr const char* kMakeText = R"(
Load a program.

Parameters
----------
libtvm_path
    Path of the `libtvm.so` in use; "": none, for a program that does not need it (`needs_tvm`).
library_path
    Absolute path of the library of kernels (`compiled_file.py` checks it and makes one);
    empty when `module_handle` is given.
program_text
    The program, or those of all hosts (see `src/exec/program/format.md`).
module_handle
    Handle of a `tvm.runtime.Module` in memory (`module.handle.value`), instead of a file.
    Its kernels run on one core each, as their parallel loops cannot be shared.
blob
    The weights as a one-dimensional `uint8` array; None if there are none. Used where it
    lies if it starts at a multiple of 64 bytes, else copied once.
max_in_flight
    Most requests at a time. Each has memory for all values, made when it is first needed.
helping
    Whether cores that wait do parts of others' kernels. None: those that share a cache do, if
    there are as many cores as queues; True: all do, whatever they share.
cuda_graphs
    Issue kernels of a GPU that follow each other with no wait between as one CUDA graph.
cuda_words
    Let cores and GPUs wait for each other by words in pinned memory, where system and driver
    allow it; else by events.
adapt
    Whether one thread does a request alone while that is faster: if other programs use the
    cores, or several requests are in flight.
transport
    Messages between the hosts, of this executor alone: it runs the host of that rank.

Raises
------
ArtifactError
    The library or the program is wrong, or they do not belong together.
ExecutionError
    A device or a core that the program needs is missing, or memory is.
)";

void BindProgram(nb::class_<LoadedExecutor>& executor) {
  using Executor = LoadedExecutor;
  executor
      .def_prop_ro("inputs", &DescribePorts<&exec::Program::inputs>,
                   "Of the program of this process, in its order.")
      .def_prop_ro("outputs", &DescribePorts<&exec::Program::outputs>,
                   "Of the program of this process, in its order.")
      .def_prop_ro("instructions", &DescribeInstructions, "Those of all hosts, queue by queue.")
      .def_prop_ro("queues", &DescribeQueues, "Names, of all hosts.")
      .def_prop_ro(
          "max_in_flight", [](Executor& self) { return self.local().max_in_flight(); },
          "Most requests in flight.")
      .def_prop_ro(
          "is_helping", [](Executor& self) { return self.local().is_helping(); },
          "Whether cores that wait do parts of others' kernels.")
      .def_prop_ro(
          "call_modes",
          [](Executor& self) {
            const exec::ModeCounts counts = self.local().Modes();
            return std::tuple(counts.chosen == exec::Mode::kSerial, counts.num_serial,
                              counts.num_changes);
          },
          "Whether one thread does a request alone at present (not in a trial); how many requests "
          "were such, trials among them; how often that has changed.")
      .def_prop_ro(
          "was_last_in_first", [](Executor& self) { return self.local().WasLastInFirst(); },
          "Whether the last run of all was, or is, in the first slot: that of "
          "`get_output`.");
}

}  // namespace

void BindExec(nb::module_& module) {
  BindRequest(module);
  nb::class_<LoadedExecutor> executor(module, "Executor", nb::is_weak_referenceable(),
                                      kExecutorText);
  executor
      .def("__init__", &MakeExecutor, nb::arg("libtvm_path"), nb::arg("library_path") = "",
           nb::arg("program_text") = "", nb::kw_only(), nb::arg("module_handle") = 0,
           nb::arg("blob") = nb::none(), nb::arg("max_in_flight") = 1,
           nb::arg("helping") = nb::none(), nb::arg("cuda_graphs") = false,
           nb::arg("cuda_words") = true, nb::arg("adapt") = false,
           nb::arg("transport") = nb::none(), kMakeText)
      .def("begin", &Begin, nb::arg("timeout_s") = nb::none(), nb::arg("session") = nb::none(),
           nb::keep_alive<0, 1>(), R"(
Return a request; None if all are in use after `timeout_s`.

`session`: its state is that of the request, which changes it; None: state is an input.

Raises
------
ExecutionError
    A step of an earlier request does not end, memory is short, or another request has the
    session.
)")
      .def("run", &Run, nb::arg("timeout_s") = nb::none(), R"(
Run once and wait for the end, as `Request.finish`.

Raises
------
ExecutionError
    An input has no value, or a step failed: the message names it, its queue, its kernel
    and the cause.
)");
  BindProgram(executor);
  BindPorts(executor);
  BindMeasuring(executor);
  BindRecording(module, executor);
  BindSession(module, executor);
}

}  // namespace heteroplace::bind
