"""Several items in batches, in the core: compositions, list schedulers, annealing.

The headers are in `src/parts/throughput/batched`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.model.plan import Copy, Run, Step
from heteroplace.native.core_arrays import IntArray, ints
from heteroplace.native.core_problem import NativeProblem

MAX_BLOCKS = 64
"""The most parts that the items may have: a batch is a word of bits."""
_UNLIMITED = int(np.iinfo(np.int64).max)
_PINS = {"free": 0, "sizes": 1, "devices": 2}

Pin = Literal["free", "sizes", "devices"]
"""What is kept of a task: nothing, the number of items on each device, the device of each item."""

_RULE_CODES = {"fastest": 0, "latency": 1, "finish": 2}

BatchRule = Literal["fastest", "latency", "finish"]
"""What a composition is chosen by: least time per item, least latency of all that is scheduled so
far, earliest finish of the task."""

BATCH_RULES: tuple[BatchRule, ...] = ("finish", "latency", "fastest")
"""All of them, in the order in which `split` tries them."""

Composition = tuple[tuple[int, int], ...]
"""(device, batch size) of each part; the sizes sum to the number of items."""


@dataclass(frozen=True)
class BatchLayout:
    """Which items of each task run together, where, and in which order."""

    device: IntArray
    """[num_tasks, num_blocks]"""
    key: npt.NDArray[np.float64]
    """[num_tasks, num_devices]: of batches whose inputs are there that of the least key runs."""
    is_joint: bool = False
    """The items that one batch reads of another are one copy; else each item is."""


@dataclass(frozen=True)
class FoundLayout:
    """What an annealing found."""

    layout: BatchLayout
    native: NativeProblem
    rows: tuple[IntArray, IntArray, IntArray]
    """What `steps` are made of."""
    makespan_ns: int
    """As the search had it; the simulated one is never later."""
    violation: int
    """As in `NativePlan`, by the static rule; 0: it can be run. The least of all that was tried."""
    num_evaluations: int

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The plan that the layout is, by start."""
        return steps_of_rows(self.native, *self.rows)


def search_batches(
    native: NativeProblem,
    items: int,
    first: BatchLayout,
    *,
    block: int = 1,
    pins: Sequence[Pin] = (),
    max_evaluations: int | None = None,
    time_limit_s: float,
    seed: int = 0,
    first_heat: float = 0.01,
    bound_ns: int = 0,
    progress: Callable[[int], bool] | None = None,
) -> FoundLayout:
    """Anneal compositions, groups of items and the order of batches. Any thread.

    Parameters
    ----------
    block
        Items that stay together all the way; at most MAX_BLOCKS blocks.
    pins
        [num_tasks]; empty: all are free.
    max_evaluations
        Layouts that are tried; None: as many as the time allows.
    first_heat
        Temperature at first, > 0, as a part of the first makespan.
    bound_ns
        A makespan that no layout is below: reached, the search ends.
    progress
        Told now and then how many layouts were tried; true ends the search.

    Raises
    ------
    GraphError
        The layout does not match the problem, or the blocks do not match the items.
    InfeasibleError
        The first layout has a batch of a size that its device does not run, or different batches of
        tasks of one colocation group.
    """
    kinds = ints([_PINS[pin] for pin in pins])
    device, key, is_joint, rows, offsets, values, makespan_ns, violation, count = (
        _core.search_batches(
            native,
            items,
            ints(first.device.reshape(-1)),
            np.ascontiguousarray(first.key.reshape(-1), dtype=np.float64),
            is_joint=first.is_joint,
            pins=kinds,
            block=block,
            max_evaluations=_UNLIMITED if max_evaluations is None else max_evaluations,
            time_limit_s=time_limit_s,
            seed=seed,
            first_heat=first_heat,
            bound_ns=bound_ns,
            progress=progress,
        )
    )
    layout = BatchLayout(
        device.reshape(first.device.shape), np.array(key).reshape(first.key.shape), is_joint
    )
    rows_of_steps = rows, offsets, values
    return FoundLayout(layout, native, rows_of_steps, makespan_ns, violation, count)


def steps_of_rows(
    native: NativeProblem, rows: IntArray, offsets: IntArray, values: IntArray
) -> tuple[Step, ...]:
    """Return the steps of a plan of several items that the core made."""
    ends, members = offsets.tolist(), values.tolist()
    steps: list[Step] = []
    for index, (kind, subject, place, src) in enumerate(rows.tolist()):
        of_step = tuple(members[ends[index] : ends[index + 1]])
        if kind == 0:
            steps.append(Run(subject, place, of_step))
        else:
            steps.append(Copy(subject, src, place, native.cluster.route(src, place), of_step))
    return tuple(steps)


@dataclass(frozen=True)
class BatchPlan:
    """A plan of several items that the core made."""

    steps: tuple[Step, ...]
    makespan_ns: int
    """As the scheduler had it; the simulated one is never later."""
    violation: int
    """As in `NativePlan`: 0: it can be run."""


def batch_compositions(native: NativeProblem, task: int, items: int) -> tuple[Composition, ...]:
    """Return the ways to serve all items of a task with one batch on each device at most.

    Those with at most three parts; if there are none, those with as few parts as possible. Empty:
    the batch sizes of the devices do not add up to `items`.
    """
    compositions = _core.batch_compositions(native, task, items)
    return tuple(tuple(parts) for parts in compositions)


def unserved_tasks(native: NativeProblem, items: int) -> tuple[int, ...]:
    """Return the tasks without `batch_compositions`, ascending; none of these is made."""
    return tuple(_core.unserved_tasks(native, items).tolist())


def schedule_batches(
    native: NativeProblem, items: int, rule: BatchRule, time_limit_s: float = math.inf
) -> BatchPlan:
    """Schedule all items of all tasks.

    Raises
    ------
    InfeasibleError
        A task has no composition.
    SolverLimitError
        The time was up.
    """
    rows, offsets, values, makespan_ns, violation = _core.schedule_batches(
        native, items, _RULE_CODES[rule], time_limit_s
    )
    steps = steps_of_rows(native, rows, offsets, values)
    return BatchPlan(steps, makespan_ns, violation)
