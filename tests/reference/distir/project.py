"""A plan -> the program of each rank: its own steps, with sends and receives in place of copies.

DistIR (arXiv 2111.05426, section 3.4). A rank is a memory with its devices. Its program is the
subsequence of the plan's steps that read or write there, so ranks that each follow their own
program, and wait for each other only in sends, receives and collectives, never wait in a circle:
the first step of the plan that is not done finds all earlier steps of its ranks done.

Before ==> after, for memories 0 and 1:

    run a @0; copy a.0 0->1; run b @1    ==>    0: run a; send a.0 to 1      1: receive a.0; run b
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.checks.check_guards import require_unguarded
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Copy, Plan, Run


@dataclass(frozen=True, slots=True)
class RunHere:
    """Run a task on a device of the rank."""

    tag: int
    """Position of the step in the plan, which sender and receiver name alike."""
    run: Run


@dataclass(frozen=True, slots=True)
class Send:
    """Give a tensor to another rank."""

    tag: int
    tensor: int
    items: tuple[int, ...]
    receiver: int
    """Its memory."""


@dataclass(frozen=True, slots=True)
class Receive:
    """Get a tensor from another rank."""

    tag: int
    tensor: int
    items: tuple[int, ...]
    sender: int
    """Its memory."""
    shape: tuple[int, ...]
    """Of one item: who receives must have room before it comes."""
    dtype: str
    bytes: int
    """Of all items."""


@dataclass(frozen=True, slots=True)
class TakePart:
    """Take part in a collective."""

    tag: int
    collective: Collective
    positions: tuple[int, ...]
    """Of the rank's devices in `collective.devices`."""
    group: tuple[int, ...]
    """The memories of all ranks that take part, in rank order, each once."""


RankStep = RunHere | Send | Receive | TakePart


@dataclass(frozen=True, slots=True)
class RankProgram:
    """What one rank does, in its order."""

    memory: int
    steps: tuple[RankStep, ...]


def project(graph: TaskGraph, cluster: Cluster, plan: Plan) -> tuple[RankProgram, ...]:
    """Return the program of each memory that takes part in a plan, ascending by memory.

    Raises
    ------
    PlanError
        A step is guarded or loads weights.
    """
    require_unguarded(plan, "programs of ranks")
    found: dict[int, list[RankStep]] = {}

    def add(memory: int, step: RankStep) -> None:
        found.setdefault(memory, []).append(step)

    for tag, step in enumerate(plan.steps):
        if isinstance(step, Run):
            add(cluster.devices[step.device].memory, RunHere(tag, step))
        elif isinstance(step, Copy):
            tensor = graph.tensors[step.tensor]
            size = tensor.bytes if tensor.shared else tensor.bytes * len(step.items)
            add(step.src, Send(tag, step.tensor, step.items, step.dst))
            add(
                step.dst,
                Receive(tag, step.tensor, step.items, step.src, tensor.shape, tensor.dtype, size),
            )
        elif isinstance(step, Collective):
            memories = [cluster.devices[device].memory for device in step.devices]
            group = tuple(dict.fromkeys(memories))
            for memory in group:
                own = tuple(at for at, other in enumerate(memories) if other == memory)
                add(memory, TakePart(tag, step, own, group))
    return tuple(RankProgram(memory, tuple(found[memory])) for memory in sorted(found))
