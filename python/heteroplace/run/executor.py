"""Run a compiled network: the Python interface to the C++ executor."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heteroplace.entries import load_entry
from heteroplace.errors import ExecutionError
from heteroplace.files.manifest import TokenizerText
from heteroplace.model.verification import Verification
from heteroplace.native.compiled_file import CompiledFile, SealedCode
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.arrays import Array
from heteroplace.run.loaded_program import SessionEntry
from heteroplace.run.manifest_check import check_manifest
from heteroplace.run.program_source import ProgramSource, Runnable
from heteroplace.run.sized_program import SizedProgram
from heteroplace.run.state import ProgramState
from heteroplace.run.tvm_library import library_for

if TYPE_CHECKING:
    from typing_extensions import Self

    from heteroplace.model.memory_use.memory import MemoryUse
    from heteroplace.model.timeline import Timeline
    from heteroplace.report.html.content import MeasuredTime
    from heteroplace.run.call_trace import Trace
    from heteroplace.run.sessions import Session

_REPR = "heteroplace.questions.short_texts:solution_repr"
_HTML = "heteroplace.questions.value_pages:program_html"
"""Loaded when an executor is shown."""
_MEASURE = "heteroplace.run.measured_page:measure"
_WRITE_REPORT = "heteroplace.solve.solve_report:write_report"
"""Loaded when a page is written."""
_TIMELINE = "heteroplace.run.measured_timeline:timed_timeline"
_TRACE = "heteroplace.run.call_trace:Trace"
"""Loaded when runs are timed or recorded."""
_SESSION = "heteroplace.run.sessions:Session"
"""Loaded for a program with state."""
_LOG = logging.getLogger("heteroplace")


class CallModes(NamedTuple):
    """How an executor has run its calls, which adapts to other programs and other calls."""

    is_serial: bool
    """Whether one thread does a call alone at present; trials of the other mode do not count."""
    num_serial: int
    """Calls that one thread did, trials among them."""
    num_changes: int
    """How often `is_serial` has changed."""


class Executor(SizedProgram):
    """Runs one compiled network; holds its memory and its worker threads.

    Any thread may call any method, and gets its own answer. `with` closes it at the end.

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
    adapt
        Let one thread do a call alone as long as that is faster: if other programs use the cores,
        or if several calls of this executor, or of others in the process, are at work.
        `call_modes` says how calls were run. Only for plans of several cores without a GPU or
        routers. Outputs are the same to the last bit. False: every call runs as planned.
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
        source: Runnable | ProgramSource,
        *,
        max_in_flight: int = 1,
        helping: bool | None = None,
        cuda_graphs: bool = False,
        cuda_words: bool = True,
        adapt: bool = True,
        replanned: str = "",
    ) -> None:
        loaded = source if isinstance(source, ProgramSource) else ProgramSource.of(source)
        manifest = loaded.manifest
        libtvm = library_for(loaded.code_path, manifest, loaded.where)
        options: dict[str, Any] = {
            "max_in_flight": max_in_flight,
            "helping": helping,
            "cuda_graphs": cuda_graphs,
            "cuda_words": cuda_words,
            "adapt": adapt,
        }
        native = NativeExecutor(
            libtvm, loaded.code_path, manifest.program_text, blob=loaded.blob, **options
        )
        check_manifest(native, manifest, loaded.where)
        self._states = ProgramState(native, manifest.state)
        super().__init__(native, self._states.ports)
        self._states.begin(loaded.blob)
        self._code: CompiledFile | SealedCode | None = loaded.code
        self._manifest = manifest
        self._replanned = replanned
        self._entries = {name: Executor(entry, **options) for name, entry in loaded.entries.items()}
        if manifest.lengths is not None:
            self._take_lengths(manifest.lengths, self._entries)
        _LOG.info("loaded from %s: queues %s", loaded.origin, ", ".join(native.queues))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        fault: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Close it; where the block has failed, end the job on all ranks with that error."""
        if fault is not None:
            self.fail(str(fault) or type(fault).__name__)
        self.close()

    def __repr__(self) -> str:
        note = "closed" if self.is_closed else ""
        text: str = load_entry(_REPR)(self.solution, type(self).__name__, note)
        return text

    def _repr_html_(self) -> str:
        """Return inputs, outputs and the plan for a notebook."""
        page: str = load_entry(_HTML)(self.solution, repr(self), self.inputs, self.outputs)
        return page

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
        """Give up memory and threads; a second call does nothing.

        Calls at work end as usual, then all is free. Later calls raise ExecutionError; plan and
        ports stay readable. Of several ranks it ends the job on all of them.
        """
        for entry in self._entries.values():
            entry.close()
        super().close()
        self._states.close()
        self._code = None

    def fail(self, text: str) -> None:
        """End the job on all ranks with an error, such as an input that is wrong; else as close."""
        self.close()

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
    def entries(self) -> Mapping[str, Executor]:
        """The programs of the file by name, this one first; empty: it has one without a name.

        They are one model at several sizes, and share weights and sessions.
        """
        own = {self._manifest.entry: self} if self._manifest.entry else {}
        return {**own, **self._entries}

    @property
    def session_state(self) -> tuple[tuple[str, str], ...]:
        """(input, output that replaces it) of all state that sessions keep; empty: there is
        none."""
        return self._manifest.session_state

    @property
    def tokenizer(self) -> TokenizerText | None:
        """The tokenizer that the program was compiled with; None: it has none."""
        return self._manifest.tokenizer

    def session(self, initial: Mapping[str, Array] | None = None) -> Session:
        """Return a sequence of calls of its own, whose state stays here from call to call.

        Parameters
        ----------
        initial
            State at first, by the names of its inputs; zeros where it is not given.

        Raises
        ------
        ExecutionError
            The program was compiled without the option `state`, or `initial` does not fit it.
        """
        if not self.session_state:
            raise ExecutionError(
                "the program has no state that sessions keep; compile it with state='auto', or "
                "with state={'input': 'output that replaces it'}"
            )
        entries = [
            SessionEntry(
                *(name, entry.run_session, entry.inputs, entry.outputs),
                entry.solution.expected_ns,
            )
            for name, entry in (self.entries or {"": self}).items()
        ]
        session: Session = load_entry(_SESSION)(
            entries, self._native.session(), self.session_state, initial
        )
        return session

    @property
    def replanned(self) -> str:
        """Why and how the plan of its file was made again for this machine; "": it was not."""
        return self._replanned

    @property
    def is_helping(self) -> bool:
        """Whether cores that wait do parts of other cores' kernels."""
        return self._native.is_helping

    @property
    def call_modes(self) -> CallModes:
        """How calls were run so far; see `adapt`."""
        return CallModes(*self._native.call_modes)

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
        timeline: Timeline = load_entry(_TIMELINE)(self._native, self.solution, num_runs)
        return timeline

    def trace(self, max_requests: int | None = None) -> Trace:
        """Return a recording, to be started: `with executor.trace() as trace: ...`.

        Parameters
        ----------
        max_requests
            How many calls are kept, the last ones; None: as many as 8 MiB hold.
        """
        trace: Trace = load_entry(_TRACE)(self._native, self.solution, max_requests)
        return trace

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        num_runs: int = 21,
        peers: Sequence[MeasuredTime] = (),
        peak_flops: Mapping[str, int] | None = None,
        command: str = "",
        file: str = "",
    ) -> tuple[int, ...]:
        """Run with clocks; write one HTML page that shows the plan, predicted beside measured.

        Parameters
        ----------
        num_runs
            As of `timeline`; as many runs are timed without clocks of steps.
        peers
            What else was timed, in turns with this.
        peak_flops
            Measured peak operations per second, by name of device.
        command
            What makes the page again.
        file
            Name of the model, for the title; "": that of the network.

        Returns
        -------
        tuple of int
            The times of the runs without clocks in ns, ascending.

        Raises
        ------
        ExecutionError
            As `timeline`.
        OSError
            The folder does not exist or cannot be written to.
        """
        timeline = self.timeline(num_runs)
        times_ns: tuple[int, ...]
        times_ns, measured = load_entry(_MEASURE)(
            self._native, timeline, num_runs, peers, peak_flops or {}
        )
        load_entry(_WRITE_REPORT)(
            self.solution,
            path,
            measured=measured,
            memory=self.predicted_memory,
            properties=self._manifest.properties,
            command=command,
            file=file,
        )
        return times_ns

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
