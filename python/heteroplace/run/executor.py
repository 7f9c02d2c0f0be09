"""Run a compiled network: the Python face of the C++ executor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from heteroplace.codegen.artifact import manifest_of
from heteroplace.codegen.executable import Executable
from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.manifest import Manifest
from heteroplace.model.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.verification import Verification
from heteroplace.native.compiled_file import CompiledFile, SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.arrays import Array, take_input, take_inputs, take_outs
from heteroplace.run.calls import Call, Completer, Deadline, PromisedCall, stream
from heteroplace.run.devices import check_devices_exist
from heteroplace.run.timeline import measured_timeline
from heteroplace.tvm_bridge import library_path


class Executor:
    """Runs one compiled network; holds its memory and its worker threads.

    Any thread may call any method, and gets its own answer.

    Parameters
    ----------
    source
        What `heteroplace.build` returned, or the path of an exported file.
    max_in_flight
        Most calls of `run` at work at a time; others wait. Each has memory for all values, made
        when it is first needed.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, or of another version.
    ExecutionError
        A device of the plan does not exist here.
    """

    def __init__(
        self, source: Executable | str | os.PathLike[str], *, max_in_flight: int = 1
    ) -> None:
        libtvm = str(library_path())
        if isinstance(source, Executable):
            manifest, text, blob = source.manifest, source.manifest.program_text, source.blob
            check_devices_exist(manifest.solution)
            code: CompiledFile | SealedCode = source.library.sealed()
            path = code.path
        else:
            code = CompiledFile(source)
            manifest = manifest_of(code)
            check_devices_exist(manifest.solution)
            code.load(libtvm)
            path, text, blob = code.code_path, code.program_text, code.weights
        self._native = NativeExecutor(libtvm, path, text, blob=blob, max_in_flight=max_in_flight)
        _check_agreement(self._native, manifest, source)
        # Loaders know the code by its path, which is another's as soon as the code is gone.
        self._code = code
        self._manifest = manifest
        self._output_names = tuple(name for name, _, _ in manifest.outputs)
        self._completer = Completer()

    @property
    def solution(self) -> Solution:
        """The plan that is run, and all it refers to."""
        return self._manifest.solution

    @property
    def verification(self) -> Verification | None:
        """How its outputs compare with those of the ONNX model; None: it was made of none."""
        return self._manifest.verification

    @property
    def inputs(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """Name, shape and dtype of every input."""
        return self._manifest.inputs

    @property
    def outputs(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """Name, shape and dtype of every output."""
        return self._manifest.outputs

    @property
    def max_in_flight(self) -> int:
        """Most calls at work at a time."""
        return self._native.max_in_flight

    def set_input(self, name: str, array: Array) -> None:
        """Copy `array` into input `name`; it stays there for all later runs.

        Parameters
        ----------
        array
            As for `run`.

        Raises
        ------
        ExecutionError
            Unknown name, or wrong device, shape or dtype.
        """
        self._native.set_input(name, take_input(name, array))

    def run(
        self,
        inputs: Mapping[str, Array] | None = None,
        /,
        *,
        out: Sequence[np.ndarray | None] | None = None,
        timeout_s: float | None = None,
        **named: Array,
    ) -> list[np.ndarray]:
        """Run the network once and return its outputs.

        From its inputs to its outputs a call has memory of its own. An input that is not given
        keeps its value: of `set_input`, or of the last call in the executor's first memory, which
        is the last call where no two are at work at once.

        Parameters
        ----------
        inputs, named
            Numpy arrays, or tensors of any library that speaks DLPack, in host memory, by name. A
            name that is also an option (`out`) must be in `inputs`. Each is copied once; one that
            is not in C order, twice.
        out
            One array for each output, written in place and returned, or None for a new array. After
            an error their contents are undefined. An output is copied once.
        timeout_s
            Most seconds from now on, waiting for other calls included; then the call is cancelled.

        Raises
        ------
        ExecutionError
            Wrong inputs or `out` (then nothing is run), a kernel failed (the message names its step
            and device), or the time is up.
        """
        return self._start(self._inputs_of(inputs, named), out, timeout_s).finish()

    def run_async(
        self,
        inputs: Mapping[str, Array] | None = None,
        /,
        *,
        out: Sequence[np.ndarray | None] | None = None,
        timeout_s: float | None = None,
        **named: Array,
    ) -> Future[list[np.ndarray]]:
        """Begin a run, as `run`; return a future of its outputs.

        The inputs are copied before it returns. While `max_in_flight` calls are at work it waits
        for one to end. Calls begin in the order in which they were submitted. To cancel the future
        ends the run early. Callbacks of futures are called in one thread, for which all futures
        wait: there a call that would have to wait is refused.

        Raises
        ------
        ExecutionError
            Wrong inputs or `out`, or the time is up before it could begin. What comes later is
            raised by the future.
        """
        promised = PromisedCall(self._start(self._inputs_of(inputs, named), out, timeout_s))
        self._completer.add(promised)
        return promised.future

    def run_many(
        self,
        inputs: Iterable[Mapping[str, Array]],
        *,
        in_flight: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[list[np.ndarray]]:
        """Run for each of `inputs`; yield the outputs, in the order of the inputs.

        An input is asked for when there is room: at most `in_flight` runs are at work or wait to be
        taken. What a run fails of is raised in its place, which ends the iterator; what `inputs`
        raises, at once. When the iterator ends, or is closed or dropped, what is in flight is
        cancelled.

        Parameters
        ----------
        inputs
            Arrays by name, as for `run`.
        in_flight
            1 to `max_in_flight`, which is the default.
        timeout_s
            For each run, from its submission on.

        Raises
        ------
        ExecutionError
            `in_flight` is out of range. From the iterator: as `run`.
        """
        most = self.max_in_flight
        count = most if in_flight is None else in_flight
        if not 1 <= count <= most:
            raise ExecutionError(
                f"in_flight is {count}; expected 1 to {most}, which max_in_flight of this executor "
                "is: load it with more"
            )
        Deadline(timeout_s)  # refused here, not by the first result
        if count == 1:  # nothing is gained by another thread
            return (self.run(item, timeout_s=timeout_s) for item in inputs)
        return stream(iter(inputs), lambda item: self.run_async(item, timeout_s=timeout_s), count)

    def _inputs_of(
        self, inputs: Mapping[str, Array] | None, named: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        if inputs is None:
            return named
        if not isinstance(inputs, Mapping):
            raise ExecutionError(
                f"inputs are a {type(inputs).__name__}; expected arrays by name: {{name: array}}"
            )
        twice = [name for name in named if name in inputs]
        if twice:
            raise ExecutionError(f"inputs {', '.join(map(repr, twice))} are given twice")
        return {**inputs, **named}

    def _start(
        self,
        given: Mapping[str, Array],
        out: Sequence[np.ndarray | None] | None,
        timeout_s: float | None,
    ) -> Call:
        """Submit a call; all that can be wrong with it is found before."""
        deadline = Deadline(timeout_s)
        arrays = take_inputs(self.inputs, given)
        outs = take_outs(self.outputs, out)
        may_wait = not self._completer.is_own_thread()
        request = self._native.begin(deadline.left_s() if may_wait else 0.0)
        if request is None:
            why = (
                f"for {timeout_s} s; allow more time, or load it with a higher max_in_flight"
                if may_wait
                else "and a callback of a future cannot wait for them; call it elsewhere"
            )
            raise ExecutionError(
                f"all {self.max_in_flight} requests of the executor were at work {why}"
            )
        try:
            for name, array in arrays.items():
                request.set_input(name, array)
            request.submit(deadline.left_s())
        except BaseException:  # Ctrl-C too: a request that nobody finishes is a slot lost
            request.close()
            raise
        return Call(request, self._output_names, outs, deadline)

    def get_output(self, index: int) -> np.ndarray:
        """Return a copy of output `index` of the last run.

        Raises
        ------
        ExecutionError
            There is no such output.
        """
        if not 0 <= index < len(self.outputs):
            raise ExecutionError(f"output {index} does not exist; there are {len(self.outputs)}")
        return self._native.get_output(self.outputs[index][0])

    def benchmark(self, num_runs: int) -> list[int]:
        """Run `num_runs` times in a loop in C++; return the wall time of each run in ns."""
        return [int(ns) for ns in self._native.benchmark(num_runs)]

    def timeline(self, num_runs: int = 21) -> Timeline:
        """Run with clocks; return when each step of the plan really started and finished.

        Of `num_runs` timed runs, after some to warm up, the one of median length is returned. Steps
        that have no kernel of their own (a reshape, or an op that was fused into another task's
        kernel) have no span.

        Raises
        ------
        ExecutionError
            `num_runs` is below 1, an input has no value, or a kernel failed.
        """
        self._native.benchmark(min(num_runs, 5))
        runs = []
        for _ in range(num_runs):
            starts, finishes = self._native.run_timed()
            records = [
                (instruction.step, instruction.kernel is not None, int(start), int(finish))
                for instruction, start, finish in zip(
                    self._native.instructions, starts, finishes, strict=True
                )
            ]
            runs.append(measured_timeline(records, self.solution))
        return sorted(runs, key=lambda timeline: timeline.makespan_ns)[num_runs // 2]

    @property
    def predicted_memory(self) -> tuple[MemoryUse, ...]:
        """What it was predicted to hold in each memory of the solution's cluster."""
        return self._manifest.memory

    def memory(self) -> dict[str, MemoryUse]:
        """Return what this executor really holds in each memory, by name, after the runs so far.

        The scratch memory of a core is counted from its first run on. What kernels of a GPU take
        for themselves is not known. Waits until no call is at work.
        """
        return self._native.memory_bytes()

    def core_to_core_ns(self) -> int | None:
        """Return the time of a cache line between two workers, in ns; None: one worker.

        Below 100 ns the cores are near neighbours; a shared machine's are not always.
        """
        return self._native.core_to_core_ns()


def load(path: str | os.PathLike[str], *, max_in_flight: int = 1) -> Executor:
    """Load a compiled file; see `Executor`.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, or of another version.
    ExecutionError
        A device of the plan does not exist here.
    """
    return Executor(path, max_in_flight=max_in_flight)


def _check_agreement(native: NativeExecutor, manifest: Manifest, source: object) -> None:
    """Check that a manifest tells of the program beside it."""
    steps = len(manifest.solution.plan.steps)
    told = [
        [(name, tuple(shape), dtype) for name, shape, dtype in ports]
        for ports in (manifest.inputs, manifest.outputs)
    ]
    found = [
        [(port.name, port.shape, port.dtype) for port in ports]
        for ports in (native.inputs, native.outputs)
    ]
    last = max((instruction.step for instruction in native.instructions), default=0)
    if told == found and last < max(steps, 1):
        return
    where = "the executable" if isinstance(source, Executable) else os.fspath(str(source))
    raise ArtifactError(
        f"{where}: its manifest is of another program: it tells of inputs {told[0]}, outputs "
        f"{told[1]} and {steps} steps, the program has {found[0]}, {found[1]} and {last + 1}; "
        f"compile the model again"
    )
