"""Several entries of one model that share weights and state -> one problem of placing them all.

A workload says how often each entry is called: a prompt once, a token 128 times. Its time is the
sum of the times of these calls. A weight that tasks of several entries read lies once in each
memory where any of them runs. State lies in one memory, in which all entries use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.plan import Plan
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import NativeProblem
from heteroplace.solve.problem import Problem

BoolArray = npt.NDArray[np.bool_]
Weights = tuple[tuple[str, int], ...]
"""(name, bytes) of constants or state."""

_ROOMY_BYTES = 2**46
"""So much that no memory limits a plan, and few enough that sums of them fit."""


def resized(cluster: Cluster, sizes: Sequence[int]) -> Cluster:
    """Return a cluster whose memories have other sizes, in bytes."""
    memories = tuple(
        replace(memory, bytes=size) for memory, size in zip(cluster.memories, sizes, strict=True)
    )
    return replace(cluster, memories=memories)


@dataclass(frozen=True)
class Entry:
    """A model at some sizes, and how often a workload calls it."""

    name: str
    problem: Problem
    """Alone: the weights of its tasks are counted for each task."""
    calls: int
    weights: tuple[Weights, ...]
    """[num_tasks]: what each task reads that other tasks may read, too. It is part of what the task
    has as `weight_bytes`."""

    @cached_property
    def roomy(self) -> NativeProblem:
        """The entry where memory limits nothing: its times alone."""
        cluster = self.problem.cluster
        roomy = resized(cluster, [_ROOMY_BYTES] * len(cluster.memories))
        return NativeProblem(self.problem.graph, roomy, self.problem.costs)

    @cached_property
    def device_memory(self) -> IntArray:
        """[num_devices]: their memories."""
        devices = self.problem.cluster.devices
        return np.array([device.memory for device in devices], dtype=np.int64)

    def placement(self, plan: Plan) -> IntArray:
        """Return the device of each task in a plan of the entry, [num_tasks]."""
        return np.array(plan.placement(len(self.problem.graph.tasks)), dtype=np.int64)

    def memories(self, plan: Plan) -> IntArray:
        """Return the memory of each task in a plan of the entry, [num_tasks]."""
        memories: IntArray = self.device_memory[self.placement(plan)]
        return memories

    @cached_property
    def own_bytes(self) -> IntArray:
        """[num_tasks]: weights that no other task reads."""
        shared = [sum(size for _, size in each) for each in self.weights]
        whole = [task.weight_bytes for task in self.problem.graph.tasks]
        return np.array(whole, dtype=np.int64) - np.array(shared, dtype=np.int64)


@dataclass(frozen=True)
class Workload:
    """Entries that are placed together.

    Raises
    ------
    SolverError
        There is no entry, two are for clusters with different memories, calls are not positive, or
        weights of one name differ in size or are more than a task has.
    """

    entries: tuple[Entry, ...]
    states: frozenset[str] = frozenset()
    """Names among the weights that may lie in one memory only."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise SolverError("a workload has no entries; name at least one, with its calls")
        sizes: dict[str, int] = {}
        for entry in self.entries:
            if entry.calls < 1:
                raise SolverError(
                    f"entry {entry.name!r} has {entry.calls} calls; expected at least 1"
                )
            if entry.problem.cluster.memories != self.cluster.memories:
                raise SolverError(
                    f"entries {self.entries[0].name!r} and {entry.name!r} are for clusters with "
                    f"different memories; place them on one"
                )
            for task, weights in zip(entry.problem.graph.tasks, entry.weights, strict=True):
                for name, num_bytes in weights:
                    if sizes.setdefault(name, num_bytes) != num_bytes:
                        raise SolverError(
                            f"entry {entry.name!r}, task {task.name!r}: weight {name!r} has "
                            f"{num_bytes} bytes, and {sizes[name]} elsewhere"
                        )
            if (entry.own_bytes < 0).any():
                task = entry.problem.graph.tasks[int(entry.own_bytes.argmin())]
                raise SolverError(
                    f"entry {entry.name!r}, task {task.name!r} shares more weights than it has"
                )

    @property
    def cluster(self) -> Cluster:
        """That of the first entry; the others have the same memories."""
        return self.entries[0].problem.cluster

    def with_memory(self, memory: int, num_bytes: int) -> Workload:
        """Return the same workload where a memory has so many bytes."""
        sizes = [each.bytes for each in self.cluster.memories]
        sizes[memory] = num_bytes
        entries = tuple(
            replace(
                entry,
                problem=replace(entry.problem, cluster=resized(entry.problem.cluster, sizes)),
            )
            for entry in self.entries
        )
        return replace(self, entries=entries)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Those of all weights, in the order of the tasks that read them first."""
        tasks = (weights for entry in self.entries for weights in entry.weights)
        return tuple(dict.fromkeys(name for weights in tasks for name, _ in weights))

    @cached_property
    def sizes(self) -> IntArray:
        """[num_weights], bytes, in the order of `names`."""
        by_name: Mapping[str, int] = dict(
            pair for entry in self.entries for weights in entry.weights for pair in weights
        )
        return np.array([by_name[name] for name in self.names], dtype=np.int64)

    @cached_property
    def is_state(self) -> BoolArray:
        """[num_weights]"""
        return np.array([name in self.states for name in self.names], dtype=bool)

    @cached_property
    def users(self) -> tuple[tuple[IntArray, IntArray], ...]:
        """For each entry the (task, weight) pairs, as two arrays of equal length."""
        number = {name: index for index, name in enumerate(self.names)}
        result = []
        for entry in self.entries:
            pairs = [
                (task, number[name])
                for task, weights in enumerate(entry.weights)
                for name, _ in weights
            ]
            both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            result.append((both[:, 0], both[:, 1]))
        return tuple(result)

    @cached_property
    def memory_bytes(self) -> IntArray:
        """[num_memories]"""
        return np.array([memory.bytes for memory in self.cluster.memories], dtype=np.int64)

    @property
    def all_weight_bytes(self) -> int:
        """All weights and state, each once."""
        own = sum(int(entry.own_bytes.sum()) for entry in self.entries)
        return own + int(self.sizes.sum())

    def weight_use(self, placements: Sequence[IntArray]) -> tuple[IntArray, int]:
        """Return what weights and state take in each memory, and what state takes too often.

        Parameters
        ----------
        placements
            For each entry the device of each task.

        Returns
        -------
        tuple[IntArray, int]
            [num_memories] bytes; and the bytes of state beyond the first memory that has it.
        """
        num_memories = len(self.memory_bytes)
        is_there = np.zeros((num_memories, len(self.names)), dtype=bool)
        use = np.zeros(num_memories, dtype=np.int64)
        for entry, (tasks, weights), placement in zip(
            self.entries, self.users, placements, strict=True
        ):
            memories = entry.device_memory[placement]
            is_there[memories[tasks], weights] = True
            np.add.at(use, memories, entry.own_bytes)
        use += is_there @ self.sizes
        copies = is_there[:, self.is_state].sum(axis=0) - 1
        return use, int(np.maximum(copies, 0) @ self.sizes[self.is_state])


def site_devices(entry: Entry) -> IntArray:
    """Return for each task and memory the device that stands for all devices of the memory.

    It is the one that runs all tasks of the entry soonest among those that can run the task.
    [num_tasks, num_memories]; IMPOSSIBLE: none can.
    """
    run_ns = entry.roomy.run_ns
    cluster = entry.problem.cluster
    usual = np.where(run_ns == IMPOSSIBLE, run_ns.max(axis=1, keepdims=True), run_ns).sum(axis=0)
    devices = np.full((run_ns.shape[0], len(cluster.memories)), IMPOSSIBLE, dtype=np.int64)
    for device in sorted(range(len(cluster.devices)), key=lambda each: -usual[each]):
        devices[run_ns[:, device] != IMPOSSIBLE, cluster.devices[device].memory] = device
    return devices
