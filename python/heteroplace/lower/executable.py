"""Compiled kernels + solutions -> executables: program, weights and what a file says of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import tvm

from heteroplace.entries import load_entry
from heteroplace.errors import ArtifactError
from heteroplace.files.manifest import Manifest, State, TokenizerText
from heteroplace.files.placement import Placement
from heteroplace.lower.compile import CompiledKernels
from heteroplace.lower.kernels import KernelCalls, Value
from heteroplace.lower.library import KernelLibrary
from heteroplace.lower.lower import lower
from heteroplace.lower.lowered import Lowered
from heteroplace.lower.program import bundle_text
from heteroplace.lower.routed_lowering import routed_lowering
from heteroplace.lower.weight_blob import WeightLayout
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.model.text.plan_text import step_name
from heteroplace.model.timeline import Timeline
from heteroplace.model.verification import Verification
from heteroplace.relay.output_names import port_names
from heteroplace.relay.source import Source, source_to_json
from heteroplace.state_option import StateNames, state_pairs

if TYPE_CHECKING:
    from heteroplace.model.routed.route_profile import Profile
    from heteroplace.report.html.content import Measured, SolverPoint

_SUMMARY = "heteroplace.report.summary:summary_text"
_WRITE_REPORT = "heteroplace.solve.solve_report:write_report"
_REPR = "heteroplace.questions.short_texts:solution_repr"
_HTML = "heteroplace.questions.value_pages:program_html"
_MEASURED = "heteroplace.report.html.content:Measured"
"""Loaded when a text or a page is made of a solution."""
_WRITE_ARTIFACT = "heteroplace.lower.artifact:write_artifact"
"""Loaded when an executable is written."""
_CHECK_PROGRAMS = "heteroplace.native.transports:check_programs"
"""Loaded for programs of several hosts."""
_WITH_KEPT_STATES = "heteroplace.lower.kept_states:with_kept_states"
"""Loaded for a network with state of sessions."""
_SHARE_WEIGHTS = "heteroplace.lower.shared_weights:share_weights"
"""Loaded for several plans over the same weights."""


@dataclass(frozen=True)
class Executable:
    """Compiled kernels, weights and program of one placed network.

    `export_library` writes it to one file; `heteroplace.Executor` runs it, from memory or file.
    """

    library: KernelLibrary
    lowered: Lowered
    manifest: Manifest
    _make_blob: Callable[[], np.ndarray]
    """Puts the weights into one array when it is first called; executables may share them."""
    source: Source | None = None
    """The Relay module of the kernels; None: it is not known."""
    entries: Mapping[str, Executable] = field(default_factory=dict)
    """The same model at other sizes, over the same weights and state, by name; all but this one."""

    def __repr__(self) -> str:
        text: str = load_entry(_REPR)(self.solution, "Executable")
        return text

    def _repr_html_(self) -> str:
        """Return inputs, outputs and the plan for a notebook."""
        ports = self.manifest.inputs, self.manifest.outputs
        page: str = load_entry(_HTML)(self.solution, repr(self), *ports)
        return page

    @property
    def blob(self) -> np.ndarray:
        """Weights, page aligned; uint8 [blob_bytes]. To run from memory; a file needs no copy."""
        return self._make_blob()

    @property
    def solution(self) -> Solution:
        """The plan and all it refers to."""
        return self.manifest.solution

    @property
    def memory(self) -> tuple[MemoryUse, ...]:
        """For each memory of the cluster what an executor will hold in it."""
        return self.manifest.memory

    @property
    def verification(self) -> Verification | None:
        """How its outputs compare with those of the ONNX model; None: there is none."""
        return self.manifest.verification

    def verified(self, verification: Verification) -> Executable:
        """Return the same, which says how its outputs compare with those of its model."""
        return replace(self, manifest=replace(self.manifest, verification=verification))

    def with_tokenizer(self, tokenizer: TokenizerText | None) -> Executable:
        """Return the same with a tokenizer, which its file then holds."""
        return replace(self, manifest=replace(self.manifest, tokenizer=tokenizer))

    def with_weights_of(self, lowered: Lowered, make_blob: Callable[[], np.ndarray]) -> Executable:
        """Return the same, whose program refers to another array of weights."""
        text = _program_text(lowered, self.solution)
        manifest = replace(self.manifest, program_text=text)
        return replace(self, lowered=lowered, manifest=manifest, _make_blob=make_blob)

    def summary(self, max_rows: int = 40, profile: Profile | None = None) -> str:
        """Return the headline with what must be known before it is believed, devices, memories and
        the placement table with reasons, as text.

        Parameters
        ----------
        profile
            Of the route decisions of a network with routers, or its file, or that of a recording:
            loads, padding and bytes are told by it; None: all branches of a router are alike.

        Raises
        ------
        RoutingError
            The profile is of another model, or its file is wrong.
        """
        text: str = load_entry(_SUMMARY)(self.manifest, max_rows, profile)
        return text

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        measured: Measured | Timeline | None = None,
        progress: Sequence[SolverPoint] = (),
        command: str = "",
        file: str = "",
    ) -> None:
        """Write one HTML page that shows the plan: what `summary` says and more, with pictures.

        Parameters
        ----------
        measured
            What a machine said of it, such as `Executor.timeline()`; None: it was not run.
            `Executor.report` measures it.
        progress
            What the solver had at which time; empty: it was not recorded.
        command
            What makes the page again.
        file
            Name of the model, for the title; "": that of the network.

        Raises
        ------
        OSError
            The folder does not exist or cannot be written to.
        """
        load_entry(_WRITE_REPORT)(
            self.solution,
            path,
            measured=(
                load_entry(_MEASURED)(measured) if isinstance(measured, Timeline) else measured
            ),
            progress=progress,
            memory=self.memory,
            properties=self.manifest.properties,
            command=command,
            file=file,
        )

    def export_library(
        self,
        path: str | os.PathLike[str],
        *,
        with_source: bool = False,
        sign_with: str | os.PathLike[str] | None = None,
    ) -> None:
        """Write kernels, weights, program, plan and cluster to ONE file.

        Parameters
        ----------
        with_source
            Also the Relay module, so that `heteroplace.load(path, on_missing="replan")` can place
            it again on another machine. Weights that kernels read in another layout are then there
            twice.
        sign_with
            A file with a private Ed25519 key, PEM: the signature stands for every byte of the file.

        Raises
        ------
        ArtifactError
            The file cannot be written, or there is no such key; an older file of that name is left
            as it was. The Relay module cannot be written.
        ExecutionError
            There is no library for signatures (OpenSSL's libcrypto).
        """
        lowered, source = self.lowered, b""
        if with_source and self.entries:
            raise ArtifactError(
                "with_source: a file with several entries is not placed again, so it has no Relay "
                "module; export it without, and compile the model anew on the other machine"
            )
        if with_source:
            lowered, source = self._with_source()
        load_entry(_WRITE_ARTIFACT)(
            path, self.library.image, lowered, self.manifest, source, sign_with
        )

    def _with_source(self) -> tuple[Lowered, bytes]:
        """The program with the weights of the Relay module behind its own, and that module."""
        if self.source is None:
            raise ArtifactError(
                "the executable was made of kernels alone, without their Relay module; build it by "
                "heteroplace.build, or export it without with_source"
            )
        layout = WeightLayout(self.lowered.weights, self.lowered.blob_bytes)

        def place(array: np.ndarray) -> int:
            return layout.offset(Value(array.shape, array.dtype.name, constant=array))

        source = source_to_json(self.source, place)
        lowered = replace(self.lowered, weights=layout.weights, blob_bytes=layout.blob_bytes)
        return lowered, source


def write_programs(
    compiled: CompiledKernels,
    solutions: Sequence[Solution],
    timelines: Sequence[Timeline] = (),
    output_names: Sequence[str] = (),
    state: StateNames = MappingProxyType({}),
    max_sessions: int = 1,
) -> list[Executable]:
    """Write the programs of several solutions of one network over the same kernels and weights.

    Parameters
    ----------
    compiled
        The network's kernels, compiled for the target that every solution gives each task.
    solutions
        Of the network's tasks, on one cluster.
    timelines
        The simulated timeline of each plan; empty: those of the solutions.
    output_names
        Of the network's outputs, in order; empty: they are called output0, output1, ...
    state, max_sessions
        The options: what sessions keep, and of how many memory is counted.

    Raises
    ------
    SolverError
        The network has no such state.
    LoweringError
        Kernel calls and a plan do not belong together, or the plan is for several items.
    InfeasibleError
        A program does not fit in some memory.
    """
    timelines = timelines or [solution.timeline for solution in solutions]
    pairs = _kept_pairs(compiled.calls, state, output_names)
    programs = [
        _lowered(compiled, solution, timeline, pairs, max_sessions)
        for solution, timeline in zip(solutions, timelines, strict=True)
    ]
    programs = [_with_output_names(lowered, output_names) for lowered in programs]
    for lowered in programs:
        if len(lowered.hosts) > 1:  # what each rank checks when it loads is told here
            load_entry(_CHECK_PROGRAMS)(lowered.text)
    if len(programs) > 1:
        programs = load_entry(_SHARE_WEIGHTS)(programs)
    make_blob = functools.cache(programs[0].make_blob)
    return [
        Executable(compiled.library, lowered, _manifest(lowered, solution, max_sessions), make_blob)
        for lowered, solution in zip(programs, solutions, strict=True)
    ]


def _kept_pairs(
    calls: KernelCalls, state: StateNames, output_names: Sequence[str]
) -> list[tuple[int, int]]:
    """(input, output) of all state of sessions, as positions."""
    if not state:
        return []
    inputs = [
        (value.input_name, value.shape, value.dtype)
        for value in calls.values
        if value.input_name is not None
    ]
    names = port_names(output_names, [name for name, _, _ in inputs], len(calls.outputs))
    results = [calls.values[value] for value in calls.outputs]
    outputs = [(name, each.shape, each.dtype) for name, each in zip(names, results, strict=True)]
    input_names = [name for name, _, _ in inputs]
    pairs = state_pairs(state, inputs, outputs)
    return [(input_names.index(name), names.index(output)) for name, output in pairs]


def _lowered(
    compiled: CompiledKernels,
    solution: Solution,
    timeline: Timeline,
    pairs: Sequence[tuple[int, int]],
    max_sessions: int,
) -> Lowered:
    """Lower a solution; its predictions begin with the first run."""
    graph, cluster, plan = solution.graph, solution.cluster, solution.plan
    calls = compiled.calls
    if pairs:
        calls = load_entry(_WITH_KEPT_STATES)(calls, pairs, graph, cluster, plan)
        calls = replace(calls, max_sessions=max_sessions)
    lowered = lower(calls, graph, cluster, plan, timeline)
    if not solution.predictions:
        return lowered
    return routed_lowering().with_predictions(lowered, solution.predictions)


def _with_output_names(lowered: Lowered, names: Sequence[str]) -> Lowered:
    """Name the outputs that are no state, which comes after them."""
    inputs, outputs = lowered.program.inputs, lowered.program.outputs
    count = len(outputs) - sum(map(len, lowered.state.values()))
    unique_names = port_names(names, [name for name, _ in inputs], count)
    named = [
        (name, tensor) for name, (_, tensor) in zip(unique_names, outputs[:count], strict=True)
    ]
    return replace(lowered, program=replace(lowered.program, outputs=(*named, *outputs[count:])))


def _manifest(lowered: Lowered, solution: Solution, max_sessions: int) -> Manifest:
    tensors = lowered.program.tensors
    replaced = {port for ports in lowered.state.values() for port in ports}
    ports = [
        tuple(
            (name, tensors[tensor].shape, tensors[tensor].dtype)
            for name, tensor in named
            if name not in replaced
        )
        for named in (lowered.program.inputs, lowered.program.outputs)
    ]
    state = tuple(
        State(name, own, lowered.initial.get(name)) for name, own in lowered.state.items()
    )
    program = lowered.program
    replaced_by = tuple(
        (program.inputs[input_][0], program.outputs[output][0])
        for input_, output in program.kept_states
    )
    return Manifest(
        tvm.__version__,
        _program_text(lowered, solution),
        Placement.of(solution, lowered.memory),
        ports[0],
        ports[1],
        state=state,
        session_state=replaced_by,
        max_sessions=max_sessions,
    )


def _program_text(lowered: Lowered, solution: Solution) -> str:
    plan, graph, cluster = solution.plan, solution.graph, solution.cluster
    return bundle_text(lowered.programs, [step_name(step, graph, cluster) for step in plan.steps])
