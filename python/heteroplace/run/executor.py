"""Run a compiled network: the Python face of the C++ executor."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import tvm

from heteroplace.codegen.artifact import manifest_of
from heteroplace.codegen.executable import Executable
from heteroplace.codegen.targets import DL_DEVICE_TYPES
from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.manifest import Manifest
from heteroplace.model.cluster import Cluster
from heteroplace.model.memory import MemoryUse
from heteroplace.model.plan import Run
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Span, Timeline
from heteroplace.model.verification import Verification
from heteroplace.native.compiled_file import CompiledFile, SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
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
            sealed = source.library.sealed()
            code: CompiledFile | SealedCode = sealed
            path = sealed.path
        else:
            file = CompiledFile(source)
            manifest = manifest_of(file)
            check_devices_exist(manifest.solution)
            file.load(libtvm)
            code, path, text, blob = file, file.code_path, file.program_text, file.weights
        self._native = NativeExecutor(libtvm, path, text, blob=blob, max_in_flight=max_in_flight)
        _check_agreement(self._native, manifest, source)
        # Loaders know the code by its path, which is another's as soon as the code is gone.
        self._code = code
        self._manifest = manifest

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

    def set_input(self, name: str, array: np.ndarray | tvm.nd.NDArray) -> None:
        """Copy `array` into input `name`; it stays there for all later runs.

        Raises
        ------
        ExecutionError
            Unknown name, or wrong shape or dtype.
        """
        self._native.set_input(name, _as_numpy(name, array))

    def run(self, /, **inputs: np.ndarray | tvm.nd.NDArray) -> list[np.ndarray]:
        """Set `inputs`, run the network once and return its outputs.

        From its inputs to its outputs a call has memory of its own. An input that is not given
        keeps its value: of `set_input`, or of the last call in the executor's first memory, which is
        the last call where no two are at work at once.

        Raises
        ------
        ExecutionError
            A wrong input, or a kernel failed; the message names its step and device.
        """
        arrays = {name: _as_numpy(name, array) for name, array in inputs.items()}
        request = self._native.begin()
        assert request is not None  # without a limit it waits
        with request:
            for name, array in arrays.items():
                request.set_input(name, array)
            request.submit()
            request.finish()
            return [request.get_output(name) for name, _, _ in self.outputs]

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


def measured_timeline(
    records: Sequence[tuple[int, bool, int, int]], solution: Solution
) -> Timeline:
    """Turn (step, is a kernel, start_ns, finish_ns) of instructions into a timeline of steps."""
    cluster, plan = solution.cluster, solution.plan
    times: dict[int, tuple[int, int]] = {}
    for step, is_kernel, start, finish in records:
        if isinstance(plan.steps[step], Run) and not is_kernel:
            # A worker that helps is there before the kernel begins, and a copy of a value that
            # only the compiled form has belongs to no step of the plan.
            continue
        known = times.get(step, (start, finish))
        times[step] = (min(known[0], start), max(known[1], finish))
    origin = min((start for start, _ in times.values()), default=0)
    spans = []
    for step, (start, finish) in sorted(times.items()):
        action = plan.steps[step]
        if isinstance(action, Run):
            resource = cluster.devices[action.device].name
        else:
            resource = cluster.links[action.route[0]].channel
        spans.append(Span(step, resource, start - origin, finish - origin))
    makespan = max((span.finish_ns for span in spans), default=0)
    return Timeline(tuple(spans), "measured", (), makespan)


def check_devices_exist(solution: Solution) -> None:
    """Raise ExecutionError, naming all that is missing, unless every device in use is here."""
    missing = missing_devices(solution.cluster, solution.devices_used)
    if missing:
        raise ExecutionError(
            "the plan needs devices that this machine does not have: "
            + "; ".join(missing)
            + ". Place the model again for a cluster that describes this machine"
        )


def missing_devices(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Say for each of the named devices what of it this machine lacks; empty: nothing."""
    allowed = os.sched_getaffinity(0)
    missing = []
    for device in cluster.devices:
        if device.name not in names:
            continue
        if device.host:
            missing.append(f"{device.name} (on machine {device.host!r}; plans run on one machine)")
            continue
        absent = sorted(set(device.cores) - allowed)
        if device.kind == "cpu" and absent:
            cores = ", ".join(map(str, absent))
            missing.append(f"{device.name} (core {cores}; allowed are {sorted(allowed)})")
        elif device.kind == "cuda" and not tvm.device("cuda", device.index).exist:
            missing.append(f"{device.name} (cuda:{device.index}; no such GPU, or no driver)")
        elif device.kind not in DL_DEVICE_TYPES:
            missing.append(f"{device.name} (kind {device.kind!r}; only CPUs and GPUs can run)")
    return missing


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


def _as_numpy(name: str, array: np.ndarray | tvm.nd.NDArray) -> np.ndarray:
    """The array as the core takes it: in C order, of a type that has bits in memory."""
    if isinstance(array, tvm.nd.NDArray):
        taken: np.ndarray = array.numpy()
        return taken
    found = np.asarray(array, order="C")
    if found.dtype.name == "bfloat16":
        return found.view(np.uint16)
    if found.dtype.kind not in "biufc" or not found.dtype.isnative:
        raise ExecutionError(f"input {name!r} cannot be an array of type {found.dtype}")
    return found
