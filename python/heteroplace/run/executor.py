"""Run a compiled network: the Python face of the C++ executor."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import tvm

from heteroplace.build.artifact import BLOB_SYMBOL, load_manifest
from heteroplace.build.executable import Executable
from heteroplace.errors import ExecutionError
from heteroplace.model.cluster import Cluster
from heteroplace.model.placement import Placement
from heteroplace.model.plan import Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.native.execute import NativeExecutor
from heteroplace.tvm_bridge import library_path


class Executor:
    """Runs one compiled network; holds its memory and its worker threads.

    Not thread-safe: one run at a time (a second one is refused with an ExecutionError).

    Parameters
    ----------
    source
        What `heteroplace.build` returned, or the path of an exported file.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, or of another version.
    ExecutionError
        A device of the plan does not exist here.
    """

    def __init__(self, source: Executable | str | os.PathLike[str]) -> None:
        if isinstance(source, Executable):
            manifest = source.manifest
            check_devices_exist(manifest.placement)
            self._native = NativeExecutor.from_module(
                library_path(), source.library, source.blob, manifest.program_text
            )
            self._keep_alive: object = source
        else:
            manifest = load_manifest(source)
            check_devices_exist(manifest.placement)
            self._native = NativeExecutor.from_file(
                library_path(), source, BLOB_SYMBOL, manifest.program_text
            )
        self._manifest = manifest

    @property
    def placement(self) -> Placement:
        """The plan that is run, and all it refers to."""
        return self._manifest.placement

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
        self._native.set_input(name, _as_numpy(array))

    def run(self, **inputs: np.ndarray | tvm.nd.NDArray) -> list[np.ndarray]:
        """Set `inputs`, run the network once and return its outputs.

        Raises
        ------
        ExecutionError
            A wrong input, or a kernel failed; the message names its step and device.
        """
        for name, array in inputs.items():
            self.set_input(name, array)
        self._native.run()
        return [self.get_output(index) for index in range(len(self.outputs))]

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
        return self._native.benchmark(num_runs)

    def timeline(self) -> Timeline:
        """Run once with clocks; return when each step of the plan really started and finished."""
        return measured_timeline(self._native.run_timed(), self.placement)

    def instruction_medians(self, num_runs: int) -> list[tuple[int, int]]:
        """Return (step of the plan, median duration in ns) of each kernel call and each copy."""
        return self._native.profile(num_runs)

    def core_hop_ns(self) -> float | None:
        """Return the time of one cache-line hop between two workers, in ns; None: one worker.

        Below 100 ns the cores are near neighbours; a shared machine's are not always.
        """
        return self._native.hop_ns()


def load(path: str | os.PathLike[str]) -> Executor:
    """Load a compiled file.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, or of another version.
    ExecutionError
        A device of the plan does not exist here.
    """
    return Executor(path)


def measured_timeline(
    records: Sequence[tuple[int, int, int]], placement: Placement
) -> Timeline:
    """Turn (step, start_ns, finish_ns) of single instructions into a timeline of steps."""
    cluster, plan = placement.cluster, placement.plan
    times: dict[int, tuple[int, int]] = {}
    for step, start, finish in records:
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


def check_devices_exist(placement: Placement) -> None:
    """Raise ExecutionError, naming all that is missing, unless every device in use is here."""
    missing = missing_devices(placement.cluster, placement.devices_used)
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
        absent = sorted(set(device.cores) - allowed)
        if device.kind == "cpu" and absent:
            cores = ", ".join(map(str, absent))
            missing.append(f"{device.name} (core {cores}; allowed are {sorted(allowed)})")
        elif device.kind != "cpu" and not tvm.device(device.kind, device.index).exist:
            missing.append(
                f"{device.name} ({device.kind}:{device.index}; no such GPU, or no driver)"
            )
    return missing


def _as_numpy(array: np.ndarray | tvm.nd.NDArray) -> np.ndarray:
    return array.numpy() if isinstance(array, tvm.nd.NDArray) else np.asarray(array)
