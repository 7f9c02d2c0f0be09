"""Modules of a chain for several items: from a split of the items at the entry to one at the exit.

DiviML, section IV-C, for its throughput. The paper says neither what the ends of a module are with
batches, nor what is moved between modules. Here an end is a composition: how many items of the task
that all data goes through are on each device. Items are interchangeable, so that who they are is
chosen when modules are joined: each then goes on from where it was.

Pairs of ends that only differ in which of some equal devices or nodes is which are one, and equal
modules share what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event

import numpy as np

from heteroplace.model.cost import Cost, TableBuilder
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry
from heteroplace.parts.throughput.batched.layouts import first_layout, tasks_split_alike
from heteroplace.parts.throughput.batched.list_solver import batch_bound
from heteroplace.parts.throughput.bounds.subproblem import Key, subproblem, subproblem_key
from heteroplace.parts.throughput.decompose.serial_modules import ChainModule
from heteroplace.parts.throughput.native.core_batches import (
    BatchLayout,
    FoundLayout,
    Pin,
    search_batches,
)
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import Problem

State = tuple[int, ...]
"""[num_devices], blocks of items on each device; () where the chain ends."""
Pair = tuple[State, State]
"""Of the entry and of the exit."""


@dataclass(frozen=True)
class SearchEffort:
    """What one search may take."""

    max_evaluations: int
    time_limit_s: float
    seed: int
    stop: Event
    """Set, it ends the search soon."""


@dataclass(frozen=True)
class PairPlan:
    """A module between two states."""

    found: FoundLayout
    """On devices in their common order."""
    devices: tuple[int, ...]
    """[num_devices], the device that each of the common order stands for."""


@dataclass
class BatchedModule:
    """One of several equal modules, and what is known about them. Not thread-safe."""

    whole: Problem
    extent: ChainModule
    items: int
    block: int
    symmetry: DeviceSymmetry
    known: dict[Pair, FoundLayout] = field(default_factory=dict)

    @cached_property
    def tasks(self) -> tuple[int, ...]:
        """Tasks of the module and its entry, ascending, by their ids in the whole."""
        entry = () if self.extent.entry is None else (self.extent.entry,)
        return tuple(sorted((*entry, *self.extent.tasks)))

    @cached_property
    def key(self) -> Key:
        """Equal for modules that are the same problem under other names."""
        rows = self.whole.native.batch_run_ns[:, list(self.tasks)].tobytes()
        return (*subproblem_key(self.whole, self.tasks), rows, self.entry, self.exit)

    @cached_property
    def entry(self) -> int:
        """Position of the entry in `tasks`; -1: there is none."""
        return -1 if self.extent.entry is None else self.tasks.index(self.extent.entry)

    @cached_property
    def exit(self) -> int:
        """Position of the exit in `tasks`; -1: there is none."""
        return -1 if self.extent.exit is None else self.tasks.index(self.extent.exit)

    @cached_property
    def problem(self) -> Problem:
        """The module alone, behind an entry that takes no time."""
        inner = subproblem(self.whole, self.tasks)
        if self.entry < 0:
            return inner
        builder = TableBuilder(
            inner.graph.identities, inner.cluster.identities, inner.costs.batches
        )
        for size in inner.costs.batches:
            for task in range(len(self.tasks)):
                for device in range(len(inner.cluster.devices)):
                    cost = inner.costs.cost(task, device, size)
                    is_free = task == self.entry and cost.ns is not None
                    builder.add(Cost.given(0) if is_free else cost)
        return Problem(inner.graph, inner.cluster, builder.finalize(), inner.frees_tensors)

    @cached_property
    def sum_ns(self) -> dict[int, IntArray]:
        """By number of blocks, [num_devices]: the time of all tasks one after the other in batches
        of that size; negative where some task does not run in it."""
        native, sizes = self.whole.native, self.whole.costs.batches
        sums = {}
        for count in range(1, self.items // self.block + 1):
            if count * self.block in sizes:
                rows = native.batch_run_ns[sizes.index(count * self.block), list(self.extent.tasks)]
                sums[count] = np.where((rows < 0).any(axis=0), -1, rows.sum(axis=0))
        return sums

    def estimate_ns(self, state: State) -> int:
        """Return how long it takes with all tasks split like that; large where they cannot be."""
        longest = 0
        for device, count in enumerate(state):
            if count:
                time_ns = int(self.sum_ns[count][device]) if count in self.sum_ns else -1
                longest = max(longest, time_ns if time_ns >= 0 else 1 << 60)
        return longest

    @cached_property
    def bound_ns(self) -> int:
        """What no plan of it is shorter than, whatever its ends: by load and critical path alone,
        as bounds over modules of modules take longer than the searches that they would end."""
        return batch_bound(self.problem, self.items, Deadline.after(0.0))

    def common(self, entry: State, exit_: State) -> tuple[Pair, tuple[int, ...]]:
        """Return the pair that stands for all that are equal, and the device behind each of its."""
        num_devices = len(self.whole.cluster.devices)
        labels = [
            (entry[device] if entry else 0, exit_[device] if exit_ else 0)
            for device in range(num_devices)
        ]
        devices = self.symmetry.canonical(labels)
        moved = tuple(
            tuple(state[device] for device in devices) if state else () for state in (entry, exit_)
        )
        return (moved[0], moved[1]), devices

    def plan(self, entry: State, exit_: State) -> PairPlan | None:
        """Return what is known of a pair; None: nothing."""
        pair, devices = self.common(entry, exit_)
        layout = self.known.get(pair)
        return None if layout is None else PairPlan(layout, devices)

    def search(self, pair: Pair, effort: SearchEffort) -> FoundLayout | None:
        """Return the best layout found of a pair that stands for all its equals. Any thread.

        It begins with the best that is known. None: there is no layout with these ends.
        """
        earlier = self.known.get(pair)
        first = earlier.layout if earlier is not None else self._first(*pair)
        if first is None:
            return None
        pins: list[Pin] = ["free"] * len(self.tasks)
        if self.exit >= 0:
            pins[self.exit] = "sizes"
        if self.entry >= 0:
            pins[self.entry] = "devices"
        layout = search_batches(
            self.problem.native,
            self.items,
            first,
            block=self.block,
            pins=pins,
            max_evaluations=effort.max_evaluations,
            time_limit_s=effort.time_limit_s,
            seed=effort.seed,
            bound_ns=self.bound_ns,
            progress=lambda _: effort.stop.is_set(),
        )
        return None if layout.violation else layout

    def _first(self, entry: State, exit_: State) -> BatchLayout | None:
        """All tasks split as the entry is, else as the exit, else in the way that is fastest; the
        ends and what is in a group with them as they are to be."""
        before = blocks_of(entry)
        behind = matched(before, exit_) if entry and exit_ else blocks_of(exit_)
        num_blocks = self.items // self.block
        device = np.zeros((len(self.tasks), num_blocks), dtype=np.int64)
        for tasks in tasks_split_alike(self.problem):
            ends = [
                end for task, end in ((self.entry, before), (self.exit, behind)) if task in tasks
            ]
            fitting = [
                choice
                for choice in (before, behind)
                if choice
                and all(choice == end for end in ends)
                and all(self._runs(task, choice) for task in tasks)
            ]
            if fitting:
                device[tasks] = fitting[0]
            elif ends or self._plain is None:
                return None
            else:
                device[tasks] = self._plain.device[tasks]
        order = np.arange(len(self.tasks), dtype=np.float64)
        key = np.repeat(order[:, None], len(self.whole.cluster.devices), axis=1)
        return BatchLayout(device, key)

    @cached_property
    def _plain(self) -> BatchLayout | None:
        """For tasks that cannot be split like an end."""
        return first_layout(self.problem, self.items, self.block)

    def _runs(self, task: int, devices: Sequence[int]) -> bool:
        sizes, run_ns = self.problem.costs.batches, self.problem.native.batch_run_ns
        for device in set(devices):
            size = devices.count(device) * self.block
            if size not in sizes or run_ns[sizes.index(size), task, device] == IMPOSSIBLE:
                return False
        return True


def blocks_of(state: State) -> list[int]:
    """Return the device of each block, ascending."""
    return [device for device, count in enumerate(state) for _ in range(count)]


def matched(devices: Sequence[int], state: State) -> list[int]:
    """Return a device for each block, as many of each as `state` says; as many as can be stay."""
    left = list(state)
    devices_of = [-1] * len(devices)
    for block, device in enumerate(devices):
        if left[device]:
            devices_of[block] = device
            left[device] -= 1
    rest = iter(blocks_of(tuple(left)))
    return [next(rest) if device < 0 else device for device in devices_of]
