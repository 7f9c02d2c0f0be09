"""DiviML's programme for several items in batches (section III-B, seven conditions) as rows.

Variables: `x` an item of a task is on a device, 0/1; `b` its batch there has so many items, 0/1;
the start of each batch; the end of all. Numbers of conditions are the paper's.

Unlike DiviML: condition 3 holds a batch back only for its own items (`BatchRules.condition3`), by
way of a finish of each (task, item), so that a row is needed for each reader's device and not for
each pair of devices; condition 5 is an equation without big-M; a copy is made once per tensor and
memory. Conditions 6 and 7 are `divi_limits.py` and `divi_order.py`. Every big-M is the room that
the horizon leaves.
Transfers never wait for each other (congestion "none"); in other modes the optimum is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from heteroplace.parts.throughput.batched.device_symmetry import DeviceSymmetry, device_symmetry
from heteroplace.parts.throughput.batched.divi_rules import (
    BatchRules,
    batch_times,
    common_divisor_ns,
    edge_transfer_ns,
    serial_horizon_ns,
    transfer_ns,
)
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram, Terms
from heteroplace.solve.problem import Problem

_LARGEST_HORIZON = 1000
"""In units of the programme: tolerances of HiGHS are 1e-6 of a unit."""


@dataclass(frozen=True)
class Slot:
    """Room for one batch of a task on a device."""

    task: int
    device: int
    round: int
    items: tuple[int, ...]
    """[num_items], columns: the item is in the batch."""
    sizes: dict[int, int]
    """Column of each size: the batch has so many items."""
    times: dict[int, int]
    """Run time of each size in ns."""
    start: int
    """Column of the start. With one item all slots of a task share it."""


@dataclass(frozen=True)
class FoundBatch:
    """A batch of a solution."""

    task: int
    device: int
    items: tuple[int, ...]
    start: float
    """In the order of the solution's starts; not in ns."""


class BatchModel:
    """The programme and its columns."""

    def __init__(
        self,
        problem: Problem,
        items: int,
        rules: BatchRules,
        horizon_ns: int | None,
        bound_ns: int,
        deadline: Deadline = NEVER,
    ) -> None:
        """Build it. Every task needs a device. TimeUpError past the deadline.

        Parameters
        ----------
        horizon_ns
            A makespan that is known to be possible in this form; None: none is known.
        bound_ns
            A makespan that no plan is below.
        """
        self.problem = problem
        self.deadline = deadline
        """For those who add rows, too."""
        self.num_items = items // rules.block
        """Number of blocks: with blocks of one item, of items."""
        self.rules = rules
        self.program = MixedProgram()
        self.times = tuple(
            tuple({size // rules.block: ns for size, ns in cell.items()} for cell in row)
            for row in batch_times(problem, items, rules.is_padded)
        )
        if horizon_ns is None:
            horizon_ns = serial_horizon_ns(problem, self.times, items, rules.rounds, deadline)
        self.horizon_ns = max(1, horizon_ns)
        self.divisor_ns = common_divisor_ns(problem, self.times, deadline)
        # Times stay whole numbers, or exact fractions: rounded ones made HiGHS lose solutions.
        self._unit_ns = self.divisor_ns
        while self.horizon_ns > _LARGEST_HORIZON * self._unit_ns:
            self._unit_ns *= 2
        self.program.parts = self._unit_ns // self.divisor_ns
        self._find_heads_and_tails()
        least = self.unit(min(bound_ns, self.horizon_ns))
        self.end = self.program.add_column(least, self.unit(self.horizon_ns))
        self.slots: list[list[Slot]] = []
        self.has_one_start = items == 1 and rules.condition3 == "corrected"
        for task in range(len(problem.graph.tasks)):
            self._add_task(task)
        if rules.condition3 == "corrected":
            self._add_corrected_edges()
        else:
            self._add_published_edges()
        self._add_inputs()
        self._add_unit_loads()

    @cached_property
    def symmetry(self) -> DeviceSymmetry:
        """Which devices and nodes may change places. TimeUpError past the deadline."""
        return device_symmetry(self.problem, deadline=self.deadline)

    def unit(self, ns: int) -> float:
        """Return a time in the unit of the programme."""
        return ns / self._unit_ns

    def to_ns(self, value: float) -> float:
        """Return a time of the programme in ns."""
        return value * self._unit_ns

    def duration(self, slot: Slot) -> Terms:
        """Return terms for the run time of a slot, 0 if it is empty."""
        return [(column, self.unit(slot.times[size])) for size, column in slot.sizes.items()]

    def exists(self, slot: Slot, factor: float = 1.0) -> Terms:
        """Return terms that are `factor` if there is a batch."""
        return [(column, factor) for column in slot.sizes.values()]

    def in_memory(self, task: int, memory: int, item: int, factor: float = 1.0) -> Terms:
        """Return terms that are `factor` if an item of a task is on a device of a memory."""
        devices = self.problem.cluster.devices
        return [
            (slot.items[item], factor)
            for slot in self.slots[task]
            if devices[slot.device].memory == memory
        ]

    def read(self, values: FloatArray) -> list[FoundBatch]:
        """Return the batches of a solution, in order of start; ties: by task, device."""
        batches = []
        for slots in self.slots:
            for slot in slots:
                block = self.rules.block
                members = tuple(
                    first * block + offset
                    for first, column in enumerate(slot.items)
                    if values[column] > 0.5
                    for offset in range(block)
                )
                if members:
                    batches.append(
                        FoundBatch(slot.task, slot.device, members, float(values[slot.start]))
                    )
        return sorted(
            batches, key=lambda batch: (batch.start, batch.task, batch.device, batch.items)
        )

    def _find_heads_and_tails(self) -> None:
        """Least time before the start and after the finish of each task, and its shortest run."""
        graph = self.problem.graph
        count = len(graph.tasks)
        self._shortest = [min(ns for cell in row for ns in cell.values()) for row in self.times]
        self.head, self.tail = [0] * count, [0] * count
        for task, before in enumerate(graph.predecessors):
            ends = [self.head[other] + self._shortest[other] for other in before]
            self.head[task] = max(ends, default=0)
        for task in range(count - 1, -1, -1):
            for other in graph.predecessors[task]:
                rest = self.tail[task] + self._shortest[task]
                self.tail[other] = max(self.tail[other], rest)

    def latest(self, task: int) -> float:
        """When a task must be done for the rest to be in time."""
        return self.unit(self.horizon_ns - self.tail[task])

    def _add_task(self, task: int) -> None:
        """The slots of a task with conditions 1, 4 and 5."""
        self.deadline.check()
        groups = self.problem.native.task_group
        group = groups[task]
        first = groups.index(group) if group >= 0 else task
        one_start = self._start_column(task, self._shortest[task]) if self.has_one_start else -1
        slots: list[Slot] = []
        for device, cell in enumerate(self.times[task]):
            for number in range(min(self.rules.rounds, self.num_items) if cell else 0):
                if first == task:
                    columns, sizes = self._new_batch(cell)
                else:
                    same = next(
                        slot
                        for slot in self.slots[first]
                        if (slot.device, slot.round) == (device, number)
                    )
                    columns, sizes = same.items, same.sizes
                start = one_start
                if not self.has_one_start:
                    # As published, an empty batch starts with one that is not.
                    is_own = self.rules.condition3 == "corrected"
                    shortest = min(cell.values()) if is_own else self._shortest[task]
                    start = self._start_column(task, shortest)
                slots.append(Slot(task, device, number, columns, sizes, cell, start))
        self.slots.append(slots)
        for slot in slots:
            for size, ns in slot.times.items():
                if self.head[task] + ns + self.tail[task] > self.horizon_ns:
                    self.program.add_row([(slot.sizes[size], 1.0)], -math.inf, 0.0)
        if first != task:
            return
        for item in range(self.num_items):
            self.program.add_row([(slot.items[item], 1.0) for slot in slots], 1.0, 1.0)
        if self.num_items > 1:
            served = [(c, float(size)) for slot in slots for size, c in slot.sizes.items()]
            self.program.add_row(served, float(self.num_items), float(self.num_items))

    def _start_column(self, task: int, shortest: int) -> int:
        head = self.unit(self.head[task])
        return self.program.add_column(head, max(head, self.latest(task) - self.unit(shortest)))

    def _new_batch(self, cell: dict[int, int]) -> tuple[tuple[int, ...], dict[int, int]]:
        """Columns of a batch, with condition 5: its size is the number of its items."""
        items = tuple(self.program.add_binary() for _ in range(self.num_items))
        if self.num_items == 1:
            return items, dict.fromkeys(cell, items[0])
        sizes = {size: self.program.add_binary() for size in cell}
        members = [(column, 1.0) for column in items]
        sized = [(column, -float(size)) for size, column in sizes.items()]
        self.program.add_row([*members, *sized], 0.0, 0.0)
        if len(sizes) > 1:
            self.program.add_row([(column, 1.0) for column in sizes.values()], -math.inf, 1.0)
        for column in items:
            held = [(size_column, -1.0) for size_column in sizes.values()]
            self.program.add_row([(column, 1.0), *held], -math.inf, 0.0)
        return items, sizes

    def _add_corrected_edges(self) -> None:
        """Conditions 2 and 3, by way of the finish of each item of each task."""
        finish = [
            [self._finish(task, item) for item in range(self.num_items)]
            for task in range(len(self.slots))
        ]
        for task, before in enumerate(self.problem.graph.predecessors):
            for item in range(self.num_items):
                tail = self.unit(self.tail[task])
                self.program.add_row([*finish[task][item], (self.end, -1.0)], -math.inf, -tail)
                back = self._output_transfer(task, item)
                if back:
                    self.program.add_row(
                        [*finish[task][item], *back, (self.end, -1.0)], -math.inf, 0.0
                    )
                for other in before:
                    self._add_wait(other, task, item, finish)

    def _finish(self, task: int, item: int) -> Terms:
        """Terms for when an item of a task is done."""
        slots = self.slots[task]
        if self.has_one_start:
            return [(slots[0].start, 1.0), *(t for slot in slots for t in self.duration(slot))]
        least = self.unit(self.head[task] + self._shortest[task])
        column = self.program.add_column(least, max(least, self.latest(task)))
        room = max(0.0, self.latest(task) - least)
        for slot in slots:
            terms = [(slot.start, 1.0), *self.duration(slot), (column, -1.0)]
            self.program.add_row([*terms, (slot.items[item], room)], -math.inf, room)
        return [(column, 1.0)]

    def _add_wait(self, src: int, dst: int, item: int, finish: list[list[Terms]]) -> None:
        """An item of `dst` waits for that of `src` and its copy."""
        cluster = self.problem.cluster
        memories = range(len(cluster.memories))
        for slot in self.slots[dst]:
            self.deadline.check()
            memory = cluster.devices[slot.device].memory
            moved: Terms = []
            longest = 0.0
            for home in memories:
                time_ns = edge_transfer_ns(self.problem, src, dst, home, memory)
                if time_ns is None:
                    on_home = self.in_memory(src, home, item)
                    if on_home:
                        self.program.add_row([*on_home, (slot.items[item], 1.0)], -math.inf, 1.0)
                elif time_ns:
                    moved += self.in_memory(src, home, item, self.unit(time_ns))
                    longest = max(longest, self.unit(time_ns))
            room = self.latest(src) + longest - self.unit(self.head[dst])
            terms = [*finish[src][item], *moved, (slot.start, -1.0), (slot.items[item], room)]
            self.program.add_row(terms, -math.inf, room)
        # Without big-M: the run itself lies between the two finishes.
        run = [(slot.items[item], self.unit(min(slot.times.values()))) for slot in self.slots[dst]]
        if self.has_one_start:
            run = [term for slot in self.slots[dst] for term in self.duration(slot)]
        later = [(column, -factor) for column, factor in finish[dst][item]]
        self.program.add_row([*finish[src][item], *run, *later], -math.inf, 0.0)

    def _add_published_edges(self) -> None:
        """Conditions 2 and 3 as published, with the transfer 0 in one memory."""
        cluster = self.problem.cluster
        for task, before in enumerate(self.problem.graph.predecessors):
            for slot in self.slots[task]:
                done = [(slot.start, 1.0), *self.duration(slot), (self.end, -1.0)]
                back = self._output_ns(task, cluster.devices[slot.device].memory)
                self.program.add_row([*done, *self.exists(slot, self.unit(back))], -math.inf, 0.0)
                for other in before:
                    self.deadline.check()
                    for source in self.slots[other]:
                        self._add_published_wait(source, slot)

    def _add_published_wait(self, src: Slot, dst: Slot) -> None:
        devices = self.problem.cluster.devices
        homes = devices[src.device].memory, devices[dst.device].memory
        time_ns = edge_transfer_ns(self.problem, src.task, dst.task, *homes)
        for one, other in zip(src.items, dst.items, strict=True):
            if time_ns is None:
                self.program.add_row([(one, 1.0), (other, 1.0)], -math.inf, 1.0)
            wait = self.unit(time_ns or 0)
            terms = [(src.start, 1.0), *self.duration(src), (dst.start, -1.0)]
            self.program.add_row([*terms, (one, wait), (other, wait)], -math.inf, wait)

    def _add_inputs(self) -> None:
        """Model inputs come from the host."""
        graph, cluster = self.problem.graph, self.problem.cluster
        if cluster.host is None:
            return
        for tensor in graph.inputs:
            value = graph.tensors[tensor]
            for task in value.consumers:
                for slot in self.slots[task]:
                    memory = cluster.devices[slot.device].memory
                    time_ns = transfer_ns(self.problem, value.bytes, cluster.host, memory)
                    assert time_ns is not None, "devices out of the host's reach have no times"
                    if time_ns:
                        here = self.exists(slot, self.unit(time_ns))
                        self.program.add_row([*here, (slot.start, -1.0)], -math.inf, 0.0)

    def _output_ns(self, task: int, memory: int) -> int:
        """Longest copy of a model output to the host."""
        graph, host = self.problem.graph, self.problem.cluster.host
        if host is None:
            return 0
        sizes = [
            graph.tensors[tensor].bytes
            for tensor in graph.task_outputs[task]
            if tensor in graph.outputs
        ]
        times = [transfer_ns(self.problem, size, memory, host) for size in sizes]
        return max((time for time in times if time is not None), default=0)

    def _output_transfer(self, task: int, item: int) -> Terms:
        terms: Terms = []
        for memory in range(len(self.problem.cluster.memories)):
            time_ns = self._output_ns(task, memory)
            if time_ns:
                terms += self.in_memory(task, memory, item, self.unit(time_ns))
        return terms

    def _add_unit_loads(self) -> None:
        """A cut: no unit is busy for longer than all takes."""
        for unit in range(len(self.problem.cluster.units)):
            busy = [
                term
                for slots in self.slots
                for slot in slots
                if unit in self.problem.cluster.unit_ids[slot.device]
                for term in self.duration(slot)
            ]
            if busy:
                self.program.add_row([*busy, (self.end, -1.0)], -math.inf, 0.0)
