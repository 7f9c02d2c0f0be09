"""Batches in an order ==> the steps of a plan, with the copies that they need.

The order of the batches is kept on every unit; each starts as early as that allows. Copies move
items one by one, which is fastest where copies do not wait for each other, or all items that one
batch reads of another together, which loads links less.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.errors import PlanError
from heteroplace.model.plan import Copy, Run, Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.parts.throughput.batched.divi_model import FoundBatch
from heteroplace.parts.throughput.batched.divi_rules import transfer_ns
from heteroplace.solve.problem import Problem

_DIGITS = 5
"""Of starts, in the unit of the programme: tolerances are 1e-6 of it."""
Key = tuple[int, int, int, int, int]
"""Start, finish, then producers before what reads from them."""


def best_steps(problem: Problem, batches: Sequence[FoundBatch], items: int) -> tuple[Step, ...]:
    """Return the steps of least simulated makespan; memory is the caller's to check."""
    candidates = (_Steps(problem, batches, items, is_joint).steps() for is_joint in (False, True))
    return min(
        candidates, key=lambda steps: simulate_steps(problem.native, steps, items).makespan_ns
    )


@dataclass
class _Batch:
    found: FoundBatch
    start_ns: int = 0
    finish_ns: int = 0


class _Steps:
    """Goes through the batches in order, those first whose inputs are made."""

    def __init__(
        self, problem: Problem, batches: Sequence[FoundBatch], items: int, is_joint: bool
    ) -> None:
        self._problem = problem
        self._graph = problem.graph
        self._cluster = problem.cluster
        self._is_joint = is_joint
        self._items = items
        self._batches = [_Batch(batch) for batch in sorted(batches, key=self._turn)]
        self._batch_of = {
            (batch.found.task, item): batch for batch in self._batches for item in batch.found.items
        }
        self._free_ns = [0] * len(self._cluster.units)
        self._there_ns: dict[tuple[int, int, int], int] = {}
        """When (tensor, memory, item) has arrived."""
        self._steps: list[tuple[Key, int, Step]] = []

    def steps(self) -> tuple[Step, ...]:
        """See `best_steps`."""
        for batch in self._in_order():
            self._add(batch)
        host = self._cluster.host
        if host is not None:
            for tensor in dict.fromkeys(self._graph.outputs):
                self._bring(tensor, host, tuple(range(self._items)))
        return tuple(step for _, _, step in sorted(self._steps, key=lambda entry: entry[:2]))

    def _turn(self, batch: FoundBatch) -> tuple[float, int]:
        """The start without its rounding error; of what starts at once that of no length first,
        which would wait for the other on units that they share."""
        run_ns = self._problem.costs.run_ns(batch.task, batch.device, len(batch.items))
        return round(batch.start, _DIGITS), run_ns or 0

    def _in_order(self) -> list[_Batch]:
        """The given order, mended where rounding put a reader before what it reads."""
        waits: list[int] = []
        readers: list[list[int]] = [[] for _ in self._batches]
        number = {id(batch): index for index, batch in enumerate(self._batches)}
        for index, batch in enumerate(self._batches):
            before = {
                number[id(self._batch_of[other, item])]
                for other in self._graph.predecessors[batch.found.task]
                for item in batch.found.items
            }
            waits.append(len(before))
            for other in before:
                readers[other].append(index)
        ready = [index for index, count in enumerate(waits) if not count]
        heapq.heapify(ready)
        order: list[_Batch] = []
        while ready:
            index = heapq.heappop(ready)
            order.append(self._batches[index])
            for reader in readers[index]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, reader)
        return order

    def _add(self, batch: _Batch) -> None:
        placed = batch.found
        device = self._cluster.devices[placed.device]
        ready = 0
        for tensor in self._graph.task_inputs[placed.task]:
            ready = max(ready, self._bring(tensor, device.memory, placed.items))
        units = self._cluster.unit_ids[placed.device]
        batch.start_ns = max([ready, *(self._free_ns[unit] for unit in units)])
        size = len(placed.items)
        run_ns = self._problem.costs.run_ns(placed.task, placed.device, size)
        if run_ns is None:
            raise PlanError(
                f"task {self._graph.tasks[placed.task].name!r} has no time for a batch of {size} "
                f"on {device.name!r}"
            )
        batch.finish_ns = batch.start_ns + run_ns
        for unit in units:
            self._free_ns[unit] = batch.finish_ns
        key = (batch.start_ns, batch.finish_ns, 2 * placed.task, placed.device, 0)
        self._steps.append((key, len(self._steps), Run(placed.task, placed.device, placed.items)))

    def _bring(self, tensor: int, memory: int, items: tuple[int, ...]) -> int:
        """Copy what is not there; return when all is."""
        producer = self._graph.tensors[tensor].producer
        if producer is None and self._cluster.host is None:
            return 0
        latest = 0
        missing: dict[tuple[int, int], list[int]] = {}
        for item in items:
            home, made_at_ns = self._cluster.host, 0
            if producer is not None:
                source = self._batch_of[producer, item]
                home = self._cluster.devices[source.found.device].memory
                made_at_ns = source.finish_ns
            assert home is not None
            if home == memory:
                latest = max(latest, made_at_ns)
            elif (tensor, memory, item) in self._there_ns:
                latest = max(latest, self._there_ns[tensor, memory, item])
            else:
                missing.setdefault((home, made_at_ns), []).append(item)
        for (home, made_at_ns), members in missing.items():
            parts = [tuple(members)] if self._is_joint else [(item,) for item in members]
            for part in parts:
                latest = max(latest, self._copy(tensor, home, memory, made_at_ns, part))
        return latest

    def _copy(
        self, tensor: int, src: int, dst: int, made_at_ns: int, items: tuple[int, ...]
    ) -> int:
        value = self._graph.tensors[tensor]
        time_ns = transfer_ns(self._problem, value.bytes * len(items), src, dst)
        if time_ns is None:
            memories = self._cluster.memories
            raise PlanError(
                f"tensor {value.name!r} has no way from {memories[src].name!r} to "
                f"{memories[dst].name!r}"
            )
        rank = -1 if value.producer is None else 2 * value.producer + 1
        key = (made_at_ns, made_at_ns + time_ns, rank, tensor, dst)
        step = Copy(tensor, src, dst, self._cluster.route(src, dst), items)
        self._steps.append((key, len(self._steps), step))
        for item in items:
            self._there_ns[tensor, dst, item] = made_at_ns + time_ns
        return made_at_ns + time_ns
