"""The executor: a lowered program and its compiled kernels, run over all devices at once.

A thin interface to the C++ class `heteroplace._core.Executor` (see `src/exec/program/format.md` for
the text form of a program). Nothing of Python takes part in a run; the interpreter's lock is
released.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.native.core_routes import RouteDecisions
from heteroplace.native.core_trace import RecordedTrace


class PortSpec(NamedTuple):
    """An input or output of a program."""

    name: str
    """Name in the model."""
    dtype: str
    """Type of the elements, by TVM's name; `bfloat16` is exchanged as `uint16` bit patterns."""
    shape: tuple[int, ...]
    """Extents; `()` for a scalar."""


class LoadedInstruction(NamedTuple):
    """One instruction of a program."""

    queue: int
    """Position of its queue in `Executor.queues`."""
    position: int
    """Position in the queue."""
    step: int
    """Step of the plan that it carries out."""
    kernel: str | None
    """Symbol of the kernel that it calls, or None for a copy or a join."""


class Request:
    """One call of a program, from its inputs to its outputs, in memory of its own.

    Made by `Executor.begin`. One thread at a time may use it (a second one is refused with an
    ExecutionError), but any thread may cancel it. It holds its memory until it is closed, or
    dropped; `with` closes it.
    """

    def __init__(self, core: _core.Request) -> None:
        self._core = core

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self._core.close()

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """Copy an array into an input of this request; see `Executor.set_input`.

        It stays for later submissions; state does not, after one that failed.
        """
        self._core.set_input(name, array)

    def submit(self, timeout_s: float | None = None, *, is_waited: bool = False) -> None:
        """Hand it to the workers, after all that were submitted before; it may be done again.

        While somebody measures it waits, up to `timeout_s`.

        An input that was not set has the value that `Executor.set_input`, or the last request in
        the executor's first slot, gave it.

        `is_waited`: `finish` follows at once. With no `timeout_s` the calling thread then does the
        request of a program of one queue itself, which may be over when this returns.

        Raises
        ------
        ExecutionError
            An input has no value, the executor cannot be used, or the time is up.
        """
        self._core.submit(timeout_s, is_waited)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end, in whatever way; return False if it goes on after `timeout_s`."""
        return self._core.wait(timeout_s)

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait for the end; after `timeout_s`, or at Ctrl-C, the request is cancelled.

        Raises
        ------
        ExecutionError
            A step failed, the request was cancelled, or it did not end in time. If a step does not
            end even then (told 0.1 s after the limit), the executor refuses all calls until it
            does.
        """
        self._core.finish(timeout_s)

    @property
    def trace_number(self) -> int:
        """Its number in the recording that was on when it was last submitted; -1: none was."""
        return self._core.trace_number

    def cancel(self, why: str = "the request was cancelled") -> None:
        """End it early if it is in flight; `finish` then raises with this text. Any thread."""
        self._core.cancel(why)

    def get_output(self, name: str, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy an output into `out`, or into a new array; see `Executor.get_output`."""
        if out is None:
            return self._core.get_output(name)
        self._core.fill_output(name, out)
        return out

    def close(self) -> None:
        """Give the memory back; a request in flight is cancelled, and not waited for."""
        self._core.close()


class Executor:
    """A loaded program, ready to run many times.

    Any thread may call any method. `begin` gives each caller a request of its own; `set_input`,
    `run` and `get_output` share one, a call at a time. What measures waits until no request is in
    flight. A failed request leaves the executor and all other requests as they are. In the child
    of a fork it works on, unless a request was in flight or held at the fork, or it uses a GPU.

    Parameters
    ----------
    libtvm_path
        Path of the `libtvm.so` in use.
    library_path
        Absolute path of the library of kernels (`compiled_file.py` checks it and makes one);
        empty when `module` is given.
    program_text
        The program, or those of all hosts.
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
    transport
        Messages between the hosts, of this executor alone: it runs the host of that rank.

    Raises
    ------
    ArtifactError
        The library or the program is wrong, or they do not belong together.
    ExecutionError
        A device or a core that the program needs is missing, or memory is.
    """

    def __init__(
        self,
        libtvm_path: str,
        library_path: str = "",
        program_text: str = "",
        *,
        module_handle: int = 0,
        blob: npt.NDArray[np.uint8] | None = None,
        max_in_flight: int = 1,
        helping: bool | None = None,
        cuda_graphs: bool = False,
        cuda_words: bool = True,
        transport: _core.Transport | None = None,
    ) -> None:
        self._core = _core.Executor(
            libtvm_path,
            library_path,
            program_text,
            module_handle,
            blob,
            max_in_flight,
            helping,
            cuda_graphs,
            cuda_words,
            transport,
        )
        self._describe(self._core)
        self.routes = RouteDecisions(self._core)

    def _describe(self, program: _core.Executor | _core.RankedExecutor) -> None:
        """Take what does not change; `program` says which instructions there are."""
        self.inputs = tuple(PortSpec(n, d, tuple(s)) for n, d, s in self._core.inputs())
        self.outputs = tuple(PortSpec(n, d, tuple(s)) for n, d, s in self._core.outputs())
        self.instructions = tuple(
            LoadedInstruction(queue, position, step, kernel or None)
            for queue, position, step, kernel in program.instructions()
        )
        self.queues: tuple[str, ...] = tuple(program.queues())
        self.max_in_flight: int = self._core.max_in_flight
        self.is_helping: bool = self._core.is_helping

    def begin(self, timeout_s: float | None = None) -> Request | None:
        """Return a request; None if all are in use after `timeout_s`.

        Raises
        ------
        ExecutionError
            A step of an earlier request does not end, or memory is short.
        """
        core = self._core.begin(timeout_s)
        return None if core is None else Request(core)

    def memory_bytes(self) -> dict[str, MemoryUse]:
        """Return what the executor holds in each space, by name, after the runs so far.

        Constants are there from the start, values for each request made so far. Workspace is what
        the kernels have really used so far, core by core, and a GPU's scratch memory as a whole;
        that of a module in memory is not in it. Waits until no request is in flight.
        """
        return {
            name: MemoryUse(weights, arena, workspace)
            for name, arena, weights, workspace in self._core.memory_bytes()
        }

    def set_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """Copy an array into an input, where it stays until it is set again.

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
        """
        self._core.set_input(name, array)

    @property
    def was_last_in_first(self) -> bool:
        """Whether the last run of all was, or is, in the first slot: that of `get_output`."""
        return self._core.was_last_in_first

    def run(self, timeout_s: float | None = None) -> None:
        """Run once and wait for the end, as `Request.finish`.

        Raises
        ------
        ExecutionError
            An input has no value, or a step failed: the message names it, its queue, its kernel
            and the cause.
        """
        self._core.run(timeout_s)

    def get_output(self, name: str, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy an output of the last run into `out`, or into a new array.

        Raises
        ------
        ExecutionError
            No such output, no successful run yet, or `out` has another type or shape.
        """
        if out is None:
            return self._core.get_output(name)
        self._core.fill_output(name, out)
        return out

    def set_own_input(self, name: str, array: npt.NDArray[Any]) -> None:
        """As `set_input`: of a process alone all inputs are its own."""
        self.set_input(name, array)

    def get_own_output(self, name: str) -> npt.NDArray[Any]:
        """As `get_output`."""
        return self.get_output(name)

    def run_timed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Run once and measure every instruction.

        Returns
        -------
        start_ns, finish_ns
            One entry per element of `instructions`, in ns from the start of the run. A span begins
            after the instruction's waits. On CUDA queues they are times of the device, tied to the
            host's clock at the start of the run (to within some microseconds).
        """
        return self._core.run_timed()

    def start_trace(self, max_requests: int | None = None) -> None:
        """Record all requests that begin from now on.

        Those of `run_timed`, `profile_cpu`, `profile_runs` and `sample` are not among them.

        Parameters
        ----------
        max_requests
            How many are kept, the last ones; None: as many as 8 MiB hold. As many as can be in
            flight are kept at least.

        Raises
        ------
        ExecutionError
            It records already, `max_requests` is out of range, or memory is short.
        """
        _core.start_trace(self._core, max_requests)

    def stop_trace(self, timeout_s: float | None = None) -> RecordedTrace:
        """End the recording, once the requests in it have ended, or after `timeout_s`.

        Raises
        ------
        ExecutionError
            Nothing is recorded.
        """
        return RecordedTrace(_core.stop_trace(self._core, timeout_s), self._core)

    def profile_cpu(self, num_runs: int) -> npt.NDArray[np.int64]:
        """Measure the processor time of every instruction in place, over several runs.

        Returns
        -------
        Median ns of each element of `instructions`, of the thread of its queue; what the reading
        of the clock takes is subtracted. The spinning of a worker that helps is part of it.

        Raises
        ------
        ExecutionError
            The program has an asynchronous queue.
        """
        return self._core.profile_cpu(num_runs)

    def sample(
        self, num_samples: int, num_calls: int, is_cold: bool = False
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Measure the only kernel call of the program, over and over.

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
            The program has more calls than one, an input has no value, the kernel failed, or the
            caches of an asynchronous device should be emptied.
        """
        return self._core.sample(num_samples, num_calls, is_cold)

    def profile_runs(self, num_runs: int) -> npt.NDArray[np.int64]:
        """Measure every instruction in place, in each of several runs.

        Returns
        -------
        ns, [num_runs, num_instructions]; instructions as in `instructions`.
        """
        durations: npt.NDArray[np.int64] = self._core.profile(num_runs).reshape(-1, num_runs).T
        return durations

    def benchmark(self, num_runs: int) -> npt.NDArray[np.int64]:
        """Run several times in a row, each started by the worker that ended the last.

        Returns
        -------
        Wall ns of each run, from its start to the end of its last worker.
        """
        return self._core.benchmark(num_runs)

    def copied_bytes(self) -> list[tuple[int, int]]:
        """Return (step of the plan, bytes so far) of each copy; see `run.Executor.copied_bytes`."""
        return _core.copied_bytes(self._core)

    def core_to_core_ns(self) -> int | None:
        """Measure how long a cache line takes between the first two CPU workers, in ns.

        Returns
        -------
        The median, or None with fewer than two CPU queues. Above 100 ns the two cores are bad
        neighbours at the moment, and times of runs on both are not representative.
        """
        return self._core.core_to_core_ns()
