"""Steps of a plan of several items <-> the layout that the annealing of batches begins with.

Items stay together in blocks, so that a batch is a word of bits in the core: one item a block if
there are at most 64, else as few more as divide the items and some batch sizes of every task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.model.plan import Run, Step, devices_of
from heteroplace.native.arrays import IMPOSSIBLE
from heteroplace.native.batches import MAX_BLOCKS, BatchLayout
from heteroplace.native.list import batch_compositions
from heteroplace.solve.batched.divi_rules import common_block
from heteroplace.solve.problem import Problem


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
    """Return a layout with each task in the composition of least longest batch; None: a task has
    no composition whose sizes are multiples of the block."""
    native = problem.native
    num_tasks, num_devices = len(problem.graph.tasks), len(problem.cluster.devices)
    device = np.zeros((num_tasks, items // block), dtype=np.int64)
    for task in range(num_tasks):
        found = []
        for parts in batch_compositions(native, task, items):
            if all(size % block == 0 for _, size in parts):
                times = [problem.costs.run_ns(task, where, size) or 0 for where, size in parts]
                found.append((max(times), parts))
        if not found:
            return None
        counts = [(where, size // block) for where, size in min(found)[1]]
        device[task] = [where for where, size in counts for _ in range(size)]
    order = np.arange(num_tasks, dtype=np.float64)
    return BatchLayout(device, np.repeat(order[:, None], num_devices, axis=1))
