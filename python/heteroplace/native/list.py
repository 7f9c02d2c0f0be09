"""List schedulers of the core, and the orders, ranks and means that they go by.

The paper, section and DOI of each stand in its header in `src/list`. All share one engine
(`src/list/engine/list_scheduler.h`): transfers take gaps of all that their route occupies and run
once for each (tensor, memory), tasks take gaps of their units, memory that lacks is freed by
readers (but in ETF and m-SCT), the tasks of a colocation group are charged and placed with the
first of them. They always return a plan; one that overflows a memory by lifetime has `violation`
> 0. Those that look at all devices for each task take a `time_limit_s`: past it they raise
SolverLimitError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.model.plan import Step
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray, ints
from heteroplace.native.core_batches import steps_of_rows
from heteroplace.native.core_graph import Dag
from heteroplace.native.core_problem import NativePlan, NativeProblem

_BATCH_RULES = {"fastest": 0, "latency": 1, "finish": 2}

BatchRule = Literal["fastest", "latency", "finish"]
"""What a composition is chosen by: least time per item, least latency of all that is scheduled so
far, earliest finish of the task."""

Composition = tuple[tuple[int, int], ...]
"""(device, batch size) of each part; the sizes sum to the number of items."""


ListParts = tuple[str, str, str]
"""Which task is next, what its device is chosen by, where it starts there: one of each of
LIST_PARTS."""

LIST_PARTS: Mapping[str, tuple[str, ...]] = {
    "priority": (
        *("rank", "topological", "path", "lookahead"),
        *("min-min", "max-min", "sufferage"),
    ),
    "choice": ("finish", "start", "run", "latency", "lookahead", "path", "available"),
    "insertion": ("gaps", "end"),
}
"""The parts of list schedulers; see `src/list/engine/list_parts.h`. The first of each are HEFT."""

NAMED_PARTS: Mapping[str, ListParts] = {
    "heft": ("rank", "finish", "gaps"),
    "cpop": ("path", "path", "gaps"),
    "peft": ("lookahead", "lookahead", "gaps"),
    "met": ("rank", "run", "gaps"),
    "mct": ("topological", "finish", "end"),
    "olb": ("topological", "available", "end"),
    "min-min": ("min-min", "finish", "end"),
    "max-min": ("max-min", "finish", "end"),
    "sufferage": ("sufferage", "finish", "end"),
    "greedy": ("topological", "latency", "gaps"),
}
"""The list schedulers of the literature that are made of these parts."""


@dataclass(frozen=True)
class MeanGraph:
    """The tasks of a problem and the edges between them, with mean times in ns."""

    run_ns: IntArray
    """[num_tasks], over the devices that a task may be on."""
    src: IntArray
    """[num_edges], task ids, ascending."""
    dst: IntArray
    """[num_edges]; ascending for each `src`."""
    transfer_ns: IntArray
    """[num_edges], over the ordered pairs of distinct devices, summed over the tensors."""


@dataclass(frozen=True)
class BatchPlan:
    """A plan of several items that the core made."""

    steps: tuple[Step, ...]
    makespan_ns: int
    """As the scheduler had it; the simulated one is never later."""
    violation: int
    """As in `NativePlan`: 0: it can be run."""


def plan_by(
    native: NativeProblem,
    parts: ListParts,
    time_limit_s: float = math.inf,
    devices: Iterable[int] | None = None,
) -> NativePlan:
    """Plan by a list scheduler of three parts; see `src/list/engine/list_parts.h`.

    Parameters
    ----------
    devices
        Those that are preferred: a task that none of them can run goes elsewhere. None: all.

    Raises
    ------
    InfeasibleError
        A task can run on no device.
    PlanError
        There is no such part; the message lists them.
    """
    count = len(native.cluster.devices)
    preferred = np.zeros(count, dtype=np.int64)
    preferred[list(range(count) if devices is None else devices)] = 1
    return native.native_plan(_core.plan_by_parts(native.core, *parts, preferred, time_limit_s))


def heft(
    native: NativeProblem, devices: Iterable[int], time_limit_s: float = math.inf
) -> NativePlan:
    """HEFT that prefers the given devices; a task that none of them can run goes elsewhere."""
    return plan_by(native, NAMED_PARTS["heft"], time_limit_s, devices)


def etf(
    native: NativeProblem,
    devices: Sequence[Sequence[int]] | None = None,
    time_limit_s: float = math.inf,
) -> NativePlan:
    """Place the pair that finishes first, again and again; see `src/list/engine/ready_queue.h`.

    Parameters
    ----------
    devices
        For each task the devices to choose from, at least one; None: all that it may be on.

    Raises
    ------
    GraphError
        A task has no device, or one that it may not be on.
    """
    return _earliest(native, devices, False, time_limit_s)


def m_etf(native: NativeProblem, time_limit_s: float = math.inf) -> NativePlan:
    """Place the pair that starts first, again and again; see `src/list/engine/ready_queue.h`."""
    return _earliest(native, None, True, time_limit_s)


def _earliest(
    native: NativeProblem,
    devices: Sequence[Sequence[int]] | None,
    is_by_start: bool,
    time_limit_s: float,
) -> NativePlan:
    """The earliest pairs, by start or finish, on the given devices."""
    if devices is None:
        is_allowed = native.run_ns != IMPOSSIBLE
        offsets = np.concatenate([[0], np.cumsum(is_allowed.sum(axis=1))]).astype(np.int64)
        values = np.nonzero(is_allowed)[1].astype(np.int64)
    else:
        sizes = [len(row) for row in devices]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        values = np.fromiter((device for row in devices for device in row), dtype=np.int64)
    return native.native_plan(
        _core.earliest(native.core, offsets, values, is_by_start, time_limit_s)
    )


def m_sct(native: NativeProblem, favourite: IntArray, time_limit_s: float = math.inf) -> NativePlan:
    """As m-ETF, with devices that wait for favourite children; see `src/list/m_sct.h`.

    Parameters
    ----------
    favourite
        [num_tasks], the favourite child of each task; -1: none.
    """
    return native.native_plan(_core.m_sct(native.core, favourite, time_limit_s))


def m_topo(native: NativeProblem, *, is_uniform: bool) -> NativePlan:
    """Fill memories in breadth-first order; see `src/list/m_topo.h`.

    Parameters
    ----------
    is_uniform
        Up to the mean load plus the largest task, not to the limit.
    """
    return native.native_plan(_core.m_topo(native.core, is_uniform))


def order_place(native: NativeProblem, order: IntArray) -> NativePlan:
    """Fill memories in a topological order; see `src/list/order_place.h`.

    Raises
    ------
    GraphError
        `order` is not a topological order of all tasks.
    """
    return native.native_plan(_core.order_place(native.core, order))


def adjusting_placement(
    native: NativeProblem, order: IntArray, time_limit_s: float = math.inf
) -> NativePlan:
    """Stay on one device unless leaving pays; see `src/list/adjusting_placement.h`.

    Raises
    ------
    GraphError
        `order` is not a topological order of all tasks.
    """
    return native.native_plan(_core.adjusting_placement(native.core, order, time_limit_s))


def list_schedule(
    native: NativeProblem, placement: Sequence[int], priority: Sequence[float]
) -> NativePlan:
    """Schedule a placement, highest priority first, with insertion into gaps."""
    priorities = np.asarray(priority, dtype=np.float64)
    return native.native_plan(_core.list_schedule(native.core, ints(placement), priorities))


def evaluate_order(
    native: NativeProblem, placement: Sequence[int] | IntArray, order: Sequence[int] | IntArray
) -> NativePlan:
    """Schedule a placement, tasks in the given topological order, without gaps on units."""
    return native.native_plan(_core.evaluate(native.core, ints(placement), ints(order)))


def what_if(
    native: NativeProblem,
    placement: Sequence[int],
    order: Sequence[int],
    tasks: Sequence[int] | None = None,
) -> IntArray:
    """Makespan in ns after moving each one task (and its colocation group) to each device.

    [tasks, num_devices] of the given ones, None: of all; IMPOSSIBLE where it cannot be.
    """
    moved = range(len(placement)) if tasks is None else tasks
    return _core.what_if(native.core, ints(placement), ints(order), ints(moved))


def batch_compositions(native: NativeProblem, task: int, items: int) -> tuple[Composition, ...]:
    """Return the ways to serve all items of a task with one batch on each device at most.

    Those with at most three parts; if there are none, those with as few parts as possible. Empty:
    the batch sizes of the devices do not add up to `items`.
    """
    found = _core.batch_compositions(native.core, task, items)
    return tuple(tuple(parts) for parts in found)


def unserved_tasks(native: NativeProblem, items: int) -> tuple[int, ...]:
    """Return the tasks without `batch_compositions`, ascending; none of these is made."""
    return tuple(_core.unserved_tasks(native.core, items).tolist())


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
        native.core, items, _BATCH_RULES[rule], time_limit_s
    )
    steps = steps_of_rows(native, rows, offsets, values)
    return BatchPlan(steps, makespan_ns, violation)


def mean_graph(native: NativeProblem) -> MeanGraph:
    """Return run and transfer times as HEFT averages them."""
    run_ns, offsets, dst, transfer_ns = _core.mean_graph(native.core)
    src = np.repeat(np.arange(len(run_ns), dtype=np.int64), np.diff(offsets))
    return MeanGraph(run_ns, src, dst, transfer_ns)


def critical_path_order(native: NativeProblem) -> IntArray:
    """Return the tasks in CPD-TOPO of Celeritas (section 5.1), by mean times."""
    return _core.task_critical_path_order(native.core)


def breadth_first_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks in breadth-first topological order; ties by id."""
    return tuple(_dag(native).breadth_first_order().tolist())


def rank_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks by descending upward rank (HEFT), which is a topological order."""
    return tuple(np.argsort(-upward_ranks(native), kind="stable").tolist())


def upward_ranks(native: NativeProblem) -> npt.NDArray[np.float64]:
    """Return the upward rank of each task in ns: means over all devices, [num_tasks]."""
    return _core.upward_ranks(native.core)


def fastest_mapping(native: NativeProblem, order: Sequence[int]) -> tuple[int, ...]:
    """Return the fastest device with room for each task, in the given order.

    Every task needs an allowed device. A memory may still overflow where none had room.
    """
    return tuple(_core.fastest_mapping(native.core, ints(order)).tolist())


def _dag(native: NativeProblem) -> Dag:
    """The tasks and the edges between them."""
    return Dag(_core.task_dag(native.core))
