"""Run a compiled network: the Python interface to the C++ executor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from heteroplace.errors import ArtifactError, ExecutionError
from heteroplace.files.manifest import Manifest
from heteroplace.lower.artifact import manifest_of
from heteroplace.lower.executable import Executable
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.plan import Copy
from heteroplace.model.routed.route_profile import Profile, RouteRecord
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.verification import Verification
from heteroplace.native.compiled_file import CompiledFile, SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.native.execute import PredictionCounts
from heteroplace.registry import load_plugin
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.run.arrays import Array
from heteroplace.run.call_trace import Trace
from heteroplace.run.loaded_program import LoadedProgram
from heteroplace.run.measured_timeline import measured_timeline
from heteroplace.run.missing_devices import check_devices_exist
from heteroplace.run.recording import Recording
from heteroplace.run.state import ProgramState
from heteroplace.solve.solve_report import write_report
from heteroplace.tvm_bridge import library_path

_LOG = logging.getLogger("heteroplace")
_Runnable = Executable | CompiledFile | str | os.PathLike[str]


class Executor(LoadedProgram):
    """Runs one compiled network; holds its memory and its worker threads.

    Any thread may call any method, and gets its own answer.

    Parameters
    ----------
    source
        What `heteroplace.build` returned, or an exported file: its path, or opened.
    max_in_flight
        Most calls of `run` at work at a time; others wait. Each has memory for all values, made
        when it is first needed.
    helping
        Whether a core that waits does parts of other cores' kernels, also of those planned for one
        core. Outputs are the same to the last bit, and the plan is seldom slower than predicted,
        often faster. None: cores that share a cache help each other, if every worker has a core;
        True: all cores do; False: each core does what is planned for it, and nothing else.
    cuda_graphs
        Issue kernels of a GPU that follow each other with no wait between as one CUDA graph, which
        is made once for each of the calls at work.
    cuda_words
        Let cores and GPUs wait for each other by words in pinned memory, where system and driver
        allow it; else by events.
    replanned
        Why and how the plan of a file was made again here, to be told; "": it was not.

    Raises
    ------
    ArtifactError
        The file is truncated, damaged, foreign, or of another version.
    MissingDeviceError
        A device of the plan does not exist here, or lacks what the code needs.
    """

    def __init__(
        self,
        source: _Runnable,
        *,
        max_in_flight: int = 1,
        helping: bool | None = None,
        cuda_graphs: bool = False,
        cuda_words: bool = True,
        replanned: str = "",
    ) -> None:
        libtvm = str(library_path())
        if isinstance(source, Executable):
            manifest, text, blob = source.manifest, source.manifest.program_text, source.blob
            check_devices_exist(manifest.solution)
            sealed = source.library.sealed()
            code: CompiledFile | SealedCode = sealed
            path = sealed.path
        else:
            file = source if isinstance(source, CompiledFile) else CompiledFile(source)
            manifest = manifest_of(file)
            check_devices_exist(manifest.solution, file.missing(libtvm))
            file.load(libtvm)
            code, path, text, blob = file, file.code_path, file.program_text, file.weights
        native = NativeExecutor(
            libtvm,
            path,
            text,
            blob=blob,
            max_in_flight=max_in_flight,
            helping=helping,
            cuda_graphs=cuda_graphs,
            cuda_words=cuda_words,
        )
        _check_agreement(native, manifest, source)
        self._states = ProgramState(native, manifest.state)
        super().__init__(native, self._states.ports)
        self._states.begin(blob)
        # Loaders know the code by its path, which is another's as soon as the code is gone.
        self._code = code
        self._manifest = manifest
        self._replanned = replanned
        where = os.fspath(source) if isinstance(source, str | os.PathLike) else "memory"
        _LOG.info("loaded from %s: queues %s", where, ", ".join(native.queues))

    @property
    def is_feeding(self) -> bool:
        """Whether this process feeds the network and reads its outputs; alone it does."""
        return True

    def serve(self) -> None:
        """Do this rank's part of a file for several hosts; see `RankedExecutor`.

        Raises
        ------
        ExecutionError
            This process is alone.
        """
        raise ExecutionError(
            "serve is for the ranks of a file for several hosts; this process is alone: call run"
        )

    def close(self) -> None:
        """End the job on all ranks; a process alone has none to end."""

    def fail(self, text: str) -> None:
        """End the job on all ranks with an error, such as an input that is wrong; else as close."""

    def state(self, name: str, value: Array | None = None) -> np.ndarray:
        """Return state, such as a weight that runs update; set it first, if a value is given.

        It is set in all memories that have it, and read from one of them. Before the first run it
        is what the file says, or what it was set to; after a run that failed it has no value, as
        some of it may have been replaced, and all state is to be set again. Waits until no call is
        at work.

        Raises
        ------
        ExecutionError
            There is no such state, it has no value, `value` has another type or shape, or no part
            of it is on the host of this rank.
        """
        if value is not None:
            self._states.write(name, value)
        return self._states.read(name)

    @property
    def replanned(self) -> str:
        """Why and how the plan of its file was made again for this machine; "": it was not."""
        return self._replanned

    @property
    def solution(self) -> Solution:
        """The plan that is run, and all it refers to."""
        return self._manifest.solution

    @property
    def is_helping(self) -> bool:
        """Whether cores that wait do parts of other cores' kernels."""
        return self._native.is_helping

    @property
    def verification(self) -> Verification | None:
        """How its outputs compare with those of the ONNX model; None: it was made of none."""
        return self._manifest.verification

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

    def trace(self, max_requests: int | None = None) -> Trace:
        """Return a recording, to be started: `with executor.trace() as trace: ...`.

        Parameters
        ----------
        max_requests
            How many calls are kept, the last ones; None: as many as 8 MiB hold.
        """
        return Trace(self._native, self.solution, max_requests)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        num_runs: int = 21,
        peers: Sequence[MeasuredTime] = (),
        command: str = "",
    ) -> None:
        """Run with clocks; write one HTML page that shows the plan, predicted beside measured.

        Parameters
        ----------
        num_runs
            As of `timeline`; as many runs are timed without clocks of steps.
        peers
            What else was timed, in turns with this.
        command
            What makes the page again.

        Raises
        ------
        ExecutionError
            As `timeline`.
        OSError
            The folder does not exist or cannot be written to.
        """
        timeline = self.timeline(num_runs)
        times_ns = sorted(int(ns) for ns in self._native.benchmark(num_runs))
        name = f"this plan, {num_runs} runs"
        middle_ns = times_ns[num_runs // 2]
        time = MeasuredTime(name, middle_ns, times_ns[0], times_ns[-1], of="runs")
        write_report(
            self.solution,
            path,
            measured=Measured(timeline, time, tuple(peers)),
            memory=self.predicted_memory,
            properties=self._manifest.properties,
            command=command,
        )

    def predict(self, routes: Mapping[str, Collection[int]]) -> None:
        """Predict which branches of routers are active, in calls that begin from now on.

        What the plan does of a prediction is done before the router has decided, and again only
        where it was wrong: outputs are the same whatever is predicted. Calls at work keep what was
        predicted when they began. Before the first prediction it is what the plan was made for. A
        router is predicted no longer when so few of the last 100 calls were right that it does not
        pay by what the plan takes; `prediction_counts` tells, and another prediction begins anew.

        Parameters
        ----------
        routes
            The branches of each router, by its name, that will be active, and no others of it;
            none: nothing is predicted. Routers that are not named keep what was predicted.

        Raises
        ------
        ExecutionError
            There is no such router or branch; nothing is changed.
        """
        self._native.predict_routes([(name, [*each]) for name, each in routes.items()])

    def prediction_counts(self) -> dict[str, PredictionCounts]:
        """Return how predictions of each router came out, in calls that succeeded so far.

        Raises
        ------
        ExecutionError
            The network has no routers.
        """
        return self._native.prediction_counts()

    def copied_bytes(self) -> dict[tuple[str, str], int]:
        """Return what all calls so far have copied between memories, also failed ones.

        Of a branch that is only the rows that its cells had. By the names of the memories (source,
        destination); pairs between which nothing is planned are left out. Weights that are loaded
        in a run, and messages between hosts, are not counted.
        """
        plan, cluster = self.solution.plan, self.solution.cluster
        num_bytes: dict[tuple[str, str], int] = {}
        for index, size in self._native.copied_bytes():
            step = plan.steps[index]
            if isinstance(step, Copy):
                way = cluster.memories[step.src].name, cluster.memories[step.dst].name
                num_bytes[way] = num_bytes.get(way, 0) + size
        return num_bytes

    def routing_text(self, profile: Profile | None = None) -> str:
        """Return loads, padding and memories of branches, and what was counted so far, as text.

        Parameters
        ----------
        profile
            As of `Executable.summary`.

        Raises
        ------
        ExecutionError
            The network has no routers.
        RoutingError
            The profile is of another model, or its file is wrong.
        """
        counts = self.prediction_counts()
        hits = {name: (each.num_exact, each.num_calls) for name, each in counts.items()}
        digest, write = self._manifest.model_digest, load_plugin("routers", "run-text")
        text: str = write(self.solution, profile, digest, self.copied_bytes(), hits)
        return text

    def record(
        self,
        path: str | os.PathLike[str],
        level: int = 1,
        observe: Callable[[RouteRecord], None] | None = None,
    ) -> Recording:
        """Record the route decisions of all calls that end from now on; return what closes it.

        A thread writes them to a file (`files/routes_file.py`), from which `heteroplace.build` can
        make a plan that fits them.

        Parameters
        ----------
        path
            The file; what is there is replaced.
        level
            1: loads of branches; 2: also where each cell goes.
        observe
            Called with each record by the thread that writes it, such as a monitor of drift.

        Raises
        ------
        ExecutionError
            The network has no routers, is recorded already, or `level` is another number.
        OSError
            The file cannot be written.
        """
        digest, record = self._manifest.model_digest, load_plugin("routers", "recording")
        recording: Recording = record(self._native, digest, path, level, observe)
        return recording

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


def _check_agreement(native: NativeExecutor, manifest: Manifest, source: _Runnable) -> None:
    """Check that a manifest tells of the program beside it."""
    steps = len(manifest.solution.plan.steps)
    expected = [
        [(name, tuple(shape), dtype) for name, shape, dtype in ports]
        for ports in (manifest.inputs, manifest.outputs)
    ]
    replaced = {port for state in manifest.state for port in state.ports}
    actual = [
        [(port.name, port.shape, port.dtype) for port in ports if port.name not in replaced]
        for ports in (native.inputs, native.outputs)
    ]
    last = max((instruction.step for instruction in native.instructions), default=0)
    if expected == actual and last < max(steps, 1):
        return
    where = "the executable"
    if not isinstance(source, Executable):
        where = source.path if isinstance(source, CompiledFile) else os.fspath(source)
    raise ArtifactError(
        f"{where}: its manifest is of another program: it tells of inputs {expected[0]}, outputs "
        f"{expected[1]} and {steps} steps, "
        f"the program has {actual[0]}, {actual[1]} and {last + 1}; "
        f"compile the model again"
    )
