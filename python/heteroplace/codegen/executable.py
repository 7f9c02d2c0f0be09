"""Compiled kernels + solutions -> executables: program, weights and what a file says of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm

from heteroplace.codegen.artifact import weights_blob, write_artifact
from heteroplace.codegen.compile import CompiledKernels
from heteroplace.codegen.library import KernelLibrary
from heteroplace.codegen.lower import Lowered, lower
from heteroplace.codegen.shared_weights import share_weights
from heteroplace.files.manifest import Manifest
from heteroplace.model.memory import MemoryUse
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.verification import Verification
from heteroplace.report.tables import (
    cost_sources_line,
    device_table,
    memory_text,
    placement_table,
    solution_headline,
)
from heteroplace.simulate.simulator import simulate


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

    def summary(self, max_rows: int = 40) -> str:
        """Return the headline, devices, memories and the placement table with reasons, as text."""
        solution = self.solution
        graph, cluster, plan = solution.graph, solution.cluster, solution.plan
        timeline = simulate(graph, cluster, solution.costs, plan)
        tables = [
            solution_headline(solution),
            device_table(graph, cluster, plan, timeline),
            memory_text(cluster, self.memory),
            placement_table(graph, cluster, plan, timeline, max_rows),
            cost_sources_line(solution.costs),
        ]
        if self.verification is not None:
            tables.append(self.verification.text)
        return "\n\n".join(tables)

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write kernels, weights, program, plan and cluster to ONE file.

        Raises
        ------
        ArtifactError
            The file cannot be written; an older file of that name is left as it was.
        """
        write_artifact(path, self.library.image, self.lowered, self.manifest)


def write_programs(
    compiled: CompiledKernels, solutions: Sequence[Solution], timelines: Sequence[Timeline] = ()
) -> list[Executable]:
    """Write the programs of several solutions of one network over the same kernels and weights.

    Parameters
    ----------
    compiled
        The network's kernels, compiled for the target that every solution gives each task.
    solutions
        Of the network's tasks, on one cluster.
    timelines
        The simulated timeline of each plan; empty: they are simulated here.

    Raises
    ------
    LoweringError
        Kernel calls and a plan do not belong together, or the plan is for several items.
    InfeasibleError
        A program does not fit in some memory.
    """
    known = timelines or [simulate(p.graph, p.cluster, p.costs, p.plan) for p in solutions]
    programs = [
        lower(compiled.calls, p.graph, p.cluster, p.plan, timeline)
        for p, timeline in zip(solutions, known, strict=True)
    ]
    if len(programs) > 1:
        programs = share_weights(programs)
    make_blob = functools.cache(partial(weights_blob, programs[0]))
    return [
        Executable(compiled.library, lowered, _manifest(lowered, solution), make_blob)
        for lowered, solution in zip(programs, solutions, strict=True)
    ]


def _manifest(lowered: Lowered, solution: Solution) -> Manifest:
    tensors = lowered.program.tensors
    ports = [
        tuple((name, tensors[tensor].shape, tensors[tensor].dtype) for name, tensor in named)
        for named in (lowered.program.inputs, lowered.program.outputs)
    ]
    text = lowered.program.to_text()
    return Manifest(tvm.__version__, text, solution, ports[0], ports[1], lowered.memory)
