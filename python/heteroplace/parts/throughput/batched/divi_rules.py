"""Which form of DiviML's programme is built, and what it takes from a problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from heteroplace.errors import SolverError
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.problem import Problem

Condition3 = Literal["corrected", "published"]
MemoryRule = Literal["held", "needed", "weights", "published"]
Measure = Literal["none", "first", "batch", "task", "time"]


@dataclass(frozen=True)
class BatchRules:
    """Choices between the published programme and ours. Checked on construction: SolverError."""

    condition3: Condition3 = "corrected"
    """"corrected": a batch waits for the batches that make its own items. "published": it waits for
    all batches of the ops that it reads from, whatever their items, which forbids plans where the
    items of one device run ahead of those of another."""
    memory: MemoryRule = "held"
    """"held": the static rule of `heteroplace.model.memory_use.memory`, with which a plan fits.
    "needed": of tensors only what no plan frees: inputs and outputs in the host memory, or outputs
    where they are made if there is no host. "weights": no tensors, for some of the tasks of a
    graph. "published": "held" and DiviML's condition 6, which charges what an op reads once more
    beside what made it."""
    symmetry: Measure = "first"
    """What orders equal devices and nodes: their first use; or, as published, number of batches, of
    items run, or busy time. With any of them the items are ordered too, by the device of the first
    task. "none": no order."""
    rounds: int = 1
    """Batches of a task on one device at most; DiviML has 1."""
    reduces_pairs: bool = True
    """Pairs of batches that the edges order anyway need no row of their own."""
    block: int = 1
    """Items that stay together all the way, where all batch sizes are multiples of it: a smaller
    programme whose plans are plans of the whole, but whose bound is not one."""
    is_padded: bool = False
    """A batch may be larger than the items in it. For bounds of some of the items of a plan."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("condition3", get_args(Condition3)),
            ("memory", get_args(MemoryRule)),
            ("symmetry", get_args(Measure)),
        ):
            if getattr(self, name) not in choices:
                raise SolverError(
                    f"{name} is {getattr(self, name)!r}; there are: {', '.join(choices)}"
                )
        for name, number in (("rounds", self.rounds), ("block", self.block)):
            if number < 1:
                raise SolverError(f"{name} must be >= 1, got {number}")


def common_block(problem: Problem, items: int) -> int:
    """Return the largest block that all batch sizes in use, and the items, are multiples of."""
    block = items
    for position, size in enumerate(problem.costs.batches):
        if size <= items and (problem.native.batch_run_ns[position] != IMPOSSIBLE).any():
            block = math.gcd(block, size)
    return block


BatchTimes = tuple[tuple[dict[int, int], ...], ...]
"""[num_tasks][num_devices]: run time in ns by number of items; empty where it cannot be."""


def batch_times(problem: Problem, items: int, is_padded: bool) -> BatchTimes:
    """Return the run times of up to `items` items.

    Parameters
    ----------
    is_padded
        n items take the least time of any batch that holds them: all numbers up to the largest
        batch have a time.
    """
    native, sizes = problem.native, problem.costs.batches

    def of_cell(task: int, device: int) -> dict[int, int]:
        given = {
            size: int(native.batch_run_ns[position, task, device])
            for position, size in enumerate(sizes)
            if native.batch_run_ns[position, task, device] != IMPOSSIBLE
        }
        if not is_padded:
            return {size: ns for size, ns in given.items() if size <= items}
        return {
            count: min(ns for size, ns in given.items() if size >= count)
            for count in range(1, min(items, max(given, default=0)) + 1)
        }

    devices = range(len(problem.cluster.devices))
    return tuple(
        tuple(of_cell(task, device) for device in devices)
        for task in range(len(problem.graph.tasks))
    )


def transfer_ns(problem: Problem, num_bytes: int, src: int, dst: int) -> int | None:
    """Return the time of one copy between memories; None: there is no way."""
    cluster = problem.cluster
    if src == dst:
        return 0
    if not cluster.is_reachable(src, dst):
        return None
    return cluster.transfer_ns(cluster.route(src, dst), num_bytes)


def edge_transfer_ns(
    problem: Problem, producer: int, reader: int, src: int, dst: int
) -> int | None:
    """Return the longest copy that an edge needs between two memories; None: there is no way."""
    outputs = set(problem.graph.task_outputs[producer])
    largest = 0
    for tensor in problem.graph.task_inputs[reader]:
        if tensor not in outputs:
            continue
        time_ns = transfer_ns(problem, problem.graph.tensors[tensor].bytes, src, dst)
        if time_ns is None:
            return None
        largest = max(largest, time_ns)
    return largest


def reachability(problem: Problem) -> list[int]:
    """Return for each task the set of tasks that come after it, as bits (transitive closure)."""
    after = [0] * len(problem.graph.tasks)
    for task in range(len(after) - 1, -1, -1):
        reach = after[task] | 1 << task
        for other in problem.graph.predecessors[task]:
            after[other] |= reach
    return after


def serial_horizon_ns(
    problem: Problem, times: BatchTimes, items: int, rounds: int, deadline: Deadline = NEVER
) -> int:
    """Return a time within which every placement can be run, one batch and copy after another.

    TimeUpError past the deadline.
    """
    total = sum(min(rounds, items) * max(cell.values()) for row in times for cell in row if cell)
    memories = range(len(problem.cluster.memories))
    for tensor in problem.graph.tensors:
        deadline.check()
        longest = max(
            transfer_ns(problem, tensor.bytes, src, dst) or 0
            for src in memories
            for dst in memories
        )
        total += longest * items * len(memories)
    return total


def common_divisor_ns(problem: Problem, times: BatchTimes, deadline: Deadline = NEVER) -> int:
    """Return the greatest number of ns that divides all run and copy times; 1 as soon as it is.

    TimeUpError past the deadline.
    """
    divisor = 0
    for row in times:
        for cell in row:
            divisor = math.gcd(divisor, *cell.values())
    memories = range(len(problem.cluster.memories))
    for num_bytes in sorted({tensor.bytes for tensor in problem.graph.tensors}):
        deadline.check()
        if divisor == 1:
            break
        for src in memories:
            for dst in memories:
                divisor = math.gcd(divisor, transfer_ns(problem, num_bytes, src, dst) or 0)
    return max(1, divisor)
