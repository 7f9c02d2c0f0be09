"""Steps of a plan of several items <-> the layout that the annealing of batches begins with.

Items stay together in blocks, so that a batch is a word of bits in the core: one item a block if
there are at most 64, else as few more as divide the items and some batch sizes of every task.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np

from heteroplace.model.plan import Run, Step, devices_of
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.batched.divi_rules import common_block
from heteroplace.parts.throughput.native.core_batches import MAX_BLOCKS, BatchLayout, Composition
from heteroplace.solve.problem import Problem

MAX_PARTS = 3
"""Batches of a task that are tried at first, as in the compositions of list schedulers."""


def block_of(problem: Problem, items: int) -> int | None:
    """Return the smallest block with which every task can be served; None: there is none.

    The greatest common divisor of all batch sizes loses nothing; a larger one, which only more than
    64 items need, leaves out batches that are no multiples of it.
    """
    common = common_block(problem, items)
    sizes = np.array(problem.costs.batches)
    runs = (problem.native.batch_run_ns != IMPOSSIBLE).any(axis=2)
    for block in range(common, items + 1, common):
        if items % block or items // block > MAX_BLOCKS:
            continue
        if runs[(sizes % block == 0) & (sizes <= items)].any(axis=0).all():
            return block
    return None


def layout_of_steps(
    problem: Problem, steps: Sequence[Step], items: int, block: int
) -> BatchLayout | None:
    """Return the layout of a plan; None if some block is not together in it.

    Batches keep the order of the steps.
    """
    shape = len(problem.graph.tasks), items
    device = np.full(shape, -1, dtype=np.int64)
    key = np.zeros((shape[0], len(problem.cluster.devices)))
    is_joint = False
    for position, step in enumerate(steps):
        if isinstance(step, Run):
            (where,) = devices_of(step)
            device[step.task, list(step.items)] = where
            key[step.task, where] = position
        else:
            is_joint = is_joint or len(getattr(step, "items", (0,))) > 1
    blocks = device.reshape(shape[0], items // block, block)
    if (blocks < 0).any() or (blocks != blocks[:, :, :1]).any():
        return None
    return BatchLayout(np.ascontiguousarray(blocks[:, :, 0]), key, is_joint)


def first_layout(problem: Problem, items: int, block: int) -> BatchLayout | None:
    """Return a layout with each task in short batches on few devices; None: a task has no batches
    whose sizes are multiples of the block and make up the items."""
    num_tasks, num_devices = len(problem.graph.tasks), len(problem.cluster.devices)
    device = np.zeros((num_tasks, items // block), dtype=np.int64)
    for tasks in tasks_split_alike(problem):
        parts = _short_parts(problem, tasks, items, block)
        if parts is None:
            return None
        device[tasks] = [where for where, size in parts for _ in range(size // block)]
    order = np.arange(num_tasks, dtype=np.float64)
    return BatchLayout(device, np.repeat(order[:, None], num_devices, axis=1))


def tasks_split_alike(problem: Problem) -> list[list[int]]:
    """Return the tasks of each colocation group, and each other task alone."""
    tasks_of: dict[int, list[int]] = {}
    for task, group in enumerate(problem.native.task_group):
        tasks_of.setdefault(group if group >= 0 else -1 - task, []).append(task)
    return list(tasks_of.values())


def _short_parts(
    problem: Problem, tasks: Sequence[int], items: int, block: int
) -> Composition | None:
    """Batches of tasks split alike, (device, size): of all choices of sizes that with the least
    longest batch, on the devices where their times have the least sum. As few as can be, where that
    is more than MAX_PARTS."""
    from scipy.optimize import linear_sum_assignment

    run_ns = problem.native.batch_run_ns[:, tasks]
    sum_ns = np.where(run_ns == IMPOSSIBLE, np.inf, run_ns).sum(axis=1)
    rows = {
        size: sum_ns[row]
        for row, size in enumerate(problem.costs.batches)
        if size % block == 0 and size <= items and np.isfinite(sum_ns[row]).any()
    }
    options: list[tuple[float, Composition]] = []
    for count in range(1, sum_ns.shape[1] + 1):
        if count > MAX_PARTS and options:
            break
        for sizes in combinations_with_replacement(rows, count):
            if sum(sizes) != items:
                continue
            times = np.array([rows[size] for size in sizes])
            try:
                chosen, devices = linear_sum_assignment(times)
            except ValueError:  # there are not as many devices for them
                continue
            parts = zip(devices.tolist(), sizes, strict=True)
            options.append((float(times[chosen, devices].max()), tuple(parts)))
    return min(options)[1] if options else None
