"""What lowering makes: a program of all hosts together, its weights, and what it will hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import Value
from heteroplace.lower.program import Program, bundle_text
from heteroplace.lower.project import project
from heteroplace.lower.weight_blob import blob_of
from heteroplace.model.cluster import Cluster
from heteroplace.model.memory_use.memory import MemoryUse
from heteroplace.model.units import format_bytes


@dataclass(frozen=True)
class Lowered:
    """A program and the weights that it refers to."""

    program: Program
    """Of all hosts together."""
    weights: Mapping[int, Value]
    """Distinct ones, by their offsets in the blob, which the program's constants refer to."""
    blob_bytes: int
    memory: tuple[MemoryUse, ...]
    """For each memory of the cluster what an executor will hold in it."""

    hosts: tuple[str, ...] = ("",)
    """Those of the cluster."""
    feeder: int = 0
    """Rank of the host that feeds the model and reads its outputs."""
    state: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs that the program replaces, by name: the ports of each, one for each memory that has
    it, which are inputs and outputs of the program."""
    initial: Mapping[str, int] = field(default_factory=dict)
    """Of state that has a value at first, by name: its offset in the blob."""

    def make_blob(self) -> np.ndarray:
        """Return the weights as one array of bytes at a multiple of a page; uint8 [blob_bytes]."""
        return blob_of(self.weights, self.blob_bytes)

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """For each host its part of the program."""
        return project(self.program, self.hosts, self.feeder)

    def alone(self) -> Program:
        """Return the program to run in one process: that of the only host that has work.

        Raises
        ------
        LoweringError
            Several hosts have.
        """
        busy = [
            rank
            for rank, program in enumerate(self.programs)
            if any(queue.instructions for queue in program.queues)
        ]
        if busy and busy != [self.feeder]:
            names = ", ".join(repr(self.hosts[rank]) for rank in sorted({*busy, self.feeder}))
            raise LoweringError(
                f"a plan over the hosts {names} cannot run in one process; start one for each host "
                f"by mpiexec, or place the model on one of them"
            )
        return replace(self.programs[self.feeder], rank=None)

    @property
    def text(self) -> str:
        """What a compiled file says: one program, or a bundle."""
        return bundle_text(self.programs)

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """For each memory of the cluster the sum of it."""
        return tuple(use.total_bytes for use in self.memory)


def excess_of(lowered: Lowered, cluster: Cluster) -> list[str]:
    """Return in which memories a program does not fit, and what to do about it."""
    pairs = zip(cluster.memories, lowered.memory_bytes, strict=True)
    return [
        f"memory {memory.name!r} has {format_bytes(memory.bytes)}, the program needs "
        f"{format_bytes(needed)} (weights, live values and workspace); allow other devices, or "
        f"give it more"
        for memory, needed in pairs
        if needed > memory.bytes
    ]
