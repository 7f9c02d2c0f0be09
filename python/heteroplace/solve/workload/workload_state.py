"""A workload -> placements of all its entries that are valued together, by time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from heteroplace.model.plan import Plan
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import critical_path_order, evaluate_order
from heteroplace.native.simulate import StepTimes, simulate_plan, simulate_steps
from heteroplace.solve.workload.workload import BoolArray, Entry, Workload, site_devices

_MAX_REMEMBERED = 200_000
"""Makespans of an entry that are remembered."""


@dataclass(frozen=True)
class WorkloadValue:
    """What placements of all entries take."""

    objective_ns: int
    """Sum over the entries of calls times makespan."""
    excess_bytes: int
    """What memories lack, and what state takes in more than one of them; 0: it is valid."""

    def is_better(self, other: WorkloadValue) -> bool:
        """Say whether it fits better; of equal fits, whether it is shorter."""
        return (self.excess_bytes, self.objective_ns) < (other.excess_bytes, other.objective_ns)


@dataclass(eq=False)
class EntryTimes:
    """The makespans of one entry by where its tasks are."""

    entry: Entry
    order: tuple[int, ...] = field(init=False)
    devices: IntArray = field(init=False)
    """[num_tasks, num_memories]; see `site_devices`."""
    _remembered: dict[bytes, tuple[int, IntArray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = tuple(critical_path_order(self.entry.roomy))
        self.devices = site_devices(self.entry)

    @cached_property
    def groups(self) -> IntArray:
        """[num_tasks]: equal for tasks that share a device."""
        groups = np.array(self.entry.roomy.task_group, dtype=np.int64)
        alone = groups < 0
        groups[alone] = np.arange(len(groups))[alone] + len(groups)
        return groups

    @cached_property
    def has_groups(self) -> bool:
        """Whether any tasks share a device."""
        return len(set(self.groups.tolist())) < len(self.groups)

    def placement(self, sites: IntArray) -> IntArray:
        """Return the device of each task for the memory of each task."""
        devices: IntArray = self.devices[np.arange(len(sites)), sites]
        return devices

    def task_bytes(self, sites: IntArray) -> IntArray:
        """Return the weights in each memory, counted for each task that reads them."""
        use = np.zeros(self.devices.shape[1], dtype=np.int64)
        np.add.at(use, sites, self.entry.roomy.weight_bytes)
        return use

    def time(self, sites: IntArray) -> tuple[int, IntArray]:
        """Return the makespan in ns, and what tensors and workspaces take in each memory."""
        key = sites.tobytes()
        if key not in self._remembered:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            placement = self.placement(sites)
            plan = evaluate_order(self.entry.roomy, placement, self.order)
            values = value_bytes(self.entry, plan, placement)
            self._remembered[key] = plan.makespan_ns, values
        return self._remembered[key]


def value_bytes(entry: Entry, plan: NativePlan, placement: IntArray) -> IntArray:
    """Return what a plan holds in each memory beside weights, in bytes."""
    return _beside_weights(entry, simulate_plan(entry.roomy, plan), placement)


def held_bytes(entry: Entry, plan: Plan) -> IntArray:
    """Return what a plan with steps holds in each memory beside weights, in bytes."""
    return _beside_weights(entry, simulate_steps(entry.roomy, plan.steps), entry.placement(plan))


def _beside_weights(entry: Entry, times: StepTimes, placement: IntArray) -> IntArray:
    weights = np.zeros(len(entry.problem.cluster.memories), dtype=np.int64)
    np.add.at(weights, entry.device_memory[placement], entry.roomy.weight_bytes)
    values: IntArray = np.array(times.peak_bytes, dtype=np.int64) - weights
    return values


class WorkloadTimes:
    """The value of placements of all entries, each given by the memory of each task."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.entries = tuple(EntryTimes(entry) for entry in workload.entries)

    def value(self, sites: Sequence[IntArray]) -> WorkloadValue:
        """Return time and excess. Every task must be able to run in its memory.

        Each entry must also fit alone, with the weights of each task counted for itself: that is
        the rule by which its plan is checked.
        """
        objective, held = 0, []
        for times, own in zip(self.entries, sites, strict=True):
            makespan, values = times.time(own)
            objective += times.entry.calls * makespan
            held.append(values)
        return WorkloadValue(objective, self.excess(sites, held))

    def excess(self, sites: Sequence[IntArray], held: Sequence[IntArray]) -> int:
        """Return what memories lack, and what state takes in more than one of them, in bytes.

        Parameters
        ----------
        sites
            For each entry the memory of each task.
        held
            For each entry and memory what tensors and workspaces take.
        """
        room = self.workload.memory_bytes
        lack = 0
        for times, own, values in zip(self.entries, sites, held, strict=True):
            lack += int(np.maximum(times.task_bytes(own) + values - room, 0).sum())
        weights, twice = self.weights(sites)
        return lack + int(np.maximum(weights + sum(held) - room, 0).sum()) + twice

    def weights(self, sites: Sequence[IntArray]) -> tuple[IntArray, int]:
        """See `Workload.weight_use`."""
        pairs = zip(self.entries, sites, strict=True)
        return self.workload.weight_use([times.placement(own) for times, own in pairs])

    def values(self, sites: Sequence[IntArray]) -> IntArray:
        """Return what tensors and workspaces of all entries take in each memory, in bytes."""
        pairs = zip(self.entries, sites, strict=True)
        held: IntArray = np.sum([times.time(own)[1] for times, own in pairs], axis=0)
        return held

    def weight_excess(self, sites: Sequence[IntArray], reserve: IntArray) -> int:
        """Return what memories lack for weights, state, and so many bytes beside them."""
        room = self.workload.memory_bytes - reserve
        weights, twice = self.weights(sites)
        excess = int(np.maximum(weights - room, 0).sum()) + twice
        for times, own in zip(self.entries, sites, strict=True):
            excess += int(np.maximum(times.task_bytes(own) - room, 0).sum())
        return excess

    @cached_property
    def layers(self) -> tuple[IntArray, ...]:
        """For each entry and task how many weights that all entries share have come so far, in the
        order of the model: equal parts of the model have equal numbers in all entries."""
        users = self.workload.users
        shared = set.intersection(*(set(weights.tolist()) for _, weights in users))
        number = {weight: rank + 1 for rank, weight in enumerate(sorted(shared))}
        result = []
        for entry, (tasks, weights) in zip(self.workload.entries, users, strict=True):
            own = np.zeros(len(entry.problem.graph.tasks), dtype=np.int64)
            for task, weight in zip(tasks.tolist(), weights.tolist(), strict=True):
                own[task] = max(own[task], number.get(weight, 0))
            # Task ids are a topological order, and a weight that comes again counts only once.
            result.append(np.maximum.accumulate(own))
        return tuple(result)

    @property
    def num_layers(self) -> int:
        """One more than the largest of `layers`."""
        return 1 + max(int(own.max(initial=0)) for own in self.layers)

    @cached_property
    def memories(self) -> tuple[int, ...]:
        """Those with devices that can run some task of every entry."""
        usable = [(times.devices != IMPOSSIBLE).any(axis=0) for times in self.entries]
        return tuple(np.flatnonzero(np.logical_and.reduce(usable)).tolist())

    def possible(self, entry: int, sites: IntArray) -> IntArray:
        """Return memories in which the tasks of an entry can run, near those that are given.

        The tasks of a colocation group go where the first of them is.
        """
        times = self.entries[entry]
        _, first, number = np.unique(times.groups, return_index=True, return_inverse=True)
        joined = sites[first][number]
        can = times.devices[np.arange(len(joined)), joined] != IMPOSSIBLE
        fallback = (times.devices != IMPOSSIBLE).argmax(axis=1)
        result: IntArray = np.where(can, joined, fallback)
        return result

    def moved(self, entry: int, sites: IntArray, moves: BoolArray, memory: int) -> IntArray:
        """Return the memories of an entry's tasks after some move to a memory.

        A task that cannot run there stays. Tasks of one colocation group move together.

        Parameters
        ----------
        moves
            [num_tasks], whether it moves.
        """
        times = self.entries[entry]
        if times.has_groups:
            moves = np.isin(times.groups, times.groups[moves])
        moves = moves & (times.devices[:, memory] != IMPOSSIBLE)
        result: IntArray = np.where(moves, memory, sites)
        return result
