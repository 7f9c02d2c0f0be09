"""The placement-and-schedule model as plain data, which every exact engine reads.

Moirai (section III-D, DOI 10.48550/arXiv.2312.04025) in the terms of this package. An activity is a
task or a transfer; a choice is one way to do it: a task on a device, a transfer from one memory to
another (so channels exist only for k != l). Each choice has a fixed duration and occupies
resources, one activity at a time: the units of the device, or what the links of the route contend
for in the cluster's congestion mode (Moirai's eq. 6 and 8). Exactly one choice of a task is taken;
a choice of a transfer is taken exactly if the tensor is made in its source and read in its
destination.

Unlike Moirai, which moves a tensor once per edge, a tensor goes once to each memory that reads it;
`dedup=False` gives the paper's transfers. Memories are charged by
`heteroplace.model.memory_use.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from heteroplace.solve.problem import Problem

NOWHERE = -1
"""`Mode.src` of a run."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to do an activity."""

    activity: int
    src: int
    """Memory that a transfer leaves; NOWHERE for a run."""
    where: int
    """Device of a run; memory that a transfer fills."""
    duration_ns: int
    resources: tuple[int, ...]
    """What it occupies while it lasts: ids as in `Cluster.route_resources`."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor on its way to readers. Taken or not, it ends before those that it serves."""

    tensor: int
    producer: int | None
    """Task that makes it; None: a model input, which is in the host memory at time 0."""
    readers: tuple[int, ...]
    dst: int | None
    """Memory that it fills; None: the one of its only reader."""
    is_output: bool
    """The host reads it, at the end."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A 0/1 value: `constant` plus the number of `choices` that are taken."""

    choices: tuple[int, ...]
    constant: int = 0

    @property
    def is_never(self) -> bool:
        """It is 0 whatever is taken."""
        return not self.choices and not self.constant


@dataclass(frozen=True, slots=True)
class AtMost:
    """No more than `limit` of `choices` are taken."""

    choices: tuple[int, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """Bytes charged once if any of some transfers fills the memory."""

    bytes: int
    transfers: tuple[tuple[int, ...], ...]
    """For each transfer those of its choices that do; one of them is taken at most."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Runs, arrivals and the largest workspace of each device fit into `room_bytes`."""

    memory: int
    room_bytes: int
    """Capacity without model inputs and outputs that the host memory always holds."""
    runs: tuple[tuple[int, int], ...]
    """(choice, bytes of weights and outputs)."""
    arrivals: tuple[Arrival, ...]
    workspaces: tuple[tuple[tuple[int, int], ...], ...]
    """For each device of the memory (choice, bytes)."""


@dataclass(frozen=True, eq=False)
class Homes:
    """Where tasks may run, hence where tensors are made and read."""

    host: int | None
    runs: Mapping[tuple[int, int], tuple[int, ...]]
    """(task, memory) -> choices of the task on devices of the memory."""

    def in_memory(self, task: int, memory: int) -> Sum:
        """1 if the task runs on a device of the memory."""
        return Sum(self.runs.get((task, memory), ()))

    def home(self, transfer: Transfer, memory: int) -> Sum:
        """1 if the tensor is made (or, a model input, arrives) in the memory."""
        if transfer.producer is None:
            return Sum((), int(memory == self.host))
        return self.in_memory(transfer.producer, memory)

    def reads(self, transfer: Transfer, memory: int) -> list[Sum]:
        """For each reader that may be in the memory: 1 if it is."""
        read_sums = [self.in_memory(task, memory) for task in transfer.readers]
        if transfer.is_output and memory == self.host:
            read_sums.append(Sum((), 1))
        return [read for read in read_sums if not read.is_never]


@dataclass(frozen=True, eq=False)
class Formulation:
    """The model. Activities are the tasks by id, then the transfers."""

    problem: Problem
    dedup: bool
    """One transfer per tensor and memory; else one per tensor and reader."""
    charges_tensors: bool
    """Memory by the static rule; else only what every plan needs."""
    homes: Homes
    choices: tuple[Mode, ...]
    transfers: tuple[Transfer, ...]
    exclusions: tuple[AtMost, ...]
    """Pairs of memories between which a tensor cannot go."""
    colocated: tuple[tuple[int, int], ...]
    """(first task of a colocation group, another one): both on one device."""
    memory_rows: tuple[MemoryRow, ...]
    head_ns: tuple[int, ...]
    """[num_activities], time that always passes before the start."""
    tail_ns: tuple[int, ...]
    """[num_activities], time that always passes after the finish."""
    bound_ns: int
    """No schedule is shorter."""

    @property
    def num_tasks(self) -> int:
        """How many of the activities are tasks."""
        return len(self.problem.graph.tasks)

    @property
    def num_activities(self) -> int:
        """Tasks and transfers."""
        return self.num_tasks + len(self.transfers)

    @cached_property
    def of_activity(self) -> tuple[tuple[int, ...], ...]:
        """For each activity its choices; empty for a transfer that is never needed."""
        ids: list[list[int]] = [[] for _ in range(self.num_activities)]
        for index, choice in enumerate(self.choices):
            ids[choice.activity].append(index)
        return tuple(map(tuple, ids))

    @cached_property
    def transfers_to(self) -> tuple[tuple[int, ...], ...]:
        """For each task the activities of the transfers that may serve it."""
        ids: list[list[int]] = [[] for _ in range(self.num_tasks)]
        for index, transfer in enumerate(self.transfers):
            for task in transfer.readers:
                ids[task].append(self.num_tasks + index)
        return tuple(map(tuple, ids))

    @cached_property
    def longest_ns(self) -> int:
        """Every schedule without idle time is at most so long: all activities in a row."""
        return sum(
            max((self.choices[choice].duration_ns for choice in ids), default=0)
            for ids in self.of_activity
        )
