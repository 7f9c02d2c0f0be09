"""Search over mappings in the core: the device of each task, with one fixed order of the tasks.

The functions take a `NativeProblem`; see `src/sched/mapping_search.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.native.arrays import IntArray
from heteroplace.native.schedule import NativeProblem

_RULES = {"annealing": 0, "evolution": 1}

Rule = Literal["annealing", "evolution"]
"""Simulated annealing, one gene per move; or the (1+1) evolutionary algorithm."""


@dataclass(frozen=True)
class MappingReport:
    """What a search over mappings did."""

    placement: tuple[int, ...]
    """Device of each task: the best mapping that was evaluated."""
    num_evaluations: int
    was_interrupted: bool
    """Ctrl-C ended it."""


@dataclass(frozen=True)
class MappingValues:
    """Values of several mappings."""

    makespan_ns: IntArray
    """[num_mappings]"""
    violation: IntArray
    """[num_mappings], as `Draft.violation`; 0: it can be run."""


def breadth_first_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks in breadth-first topological order; ties by id."""
    return tuple(_core.breadth_first_order(native.core))


def depth_first_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks in a topological order that goes on with a reader of the latest task."""
    return tuple(_core.depth_first_order(native.core))


def rank_order(native: NativeProblem) -> tuple[int, ...]:
    """Return the tasks by descending upward rank (HEFT), which is a topological order."""
    return tuple(np.argsort(-upward_ranks(native), kind="stable").tolist())


def upward_ranks(native: NativeProblem) -> npt.NDArray[np.float64]:
    """Return the upward rank of each task in ns: means over all devices, [num_tasks]."""
    return np.asarray(_core.upward_ranks(native.core), dtype=np.float64)


def fastest_mapping(native: NativeProblem, order: Sequence[int]) -> tuple[int, ...]:
    """Return the fastest device with room for each task, in the given order.

    Every task needs an allowed device. A memory may still overflow where none had room.
    """
    return tuple(_core.fastest_mapping(native.core, _ids(order)))


def evaluate_mappings(
    native: NativeProblem, mappings: IntArray, order: Sequence[int]
) -> MappingValues:
    """Return the value of each mapping, [num_mappings, num_tasks], under one order of tasks."""
    flat = np.ascontiguousarray(mappings, dtype=np.int64)
    values = _core.evaluate_mappings(native.core, flat.ravel(), len(flat), _ids(order))
    pairs = np.asarray(values, dtype=np.int64).reshape(-1, 2)
    return MappingValues(pairs[:, 0], pairs[:, 1])


def search_mapping(
    native: NativeProblem,
    start: Sequence[int],
    order: Sequence[int],
    *,
    rule: Rule,
    max_evaluations: int | None,
    time_limit_s: float,
    seed: int,
    bound_ns: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> MappingReport:
    """Improve a mapping; its value is the makespan when tasks go in `order`.

    Parameters
    ----------
    start
        Device of each task, [num_tasks]: allowed ones, one for each `together` label.
    order
        A topological order of the tasks, [num_tasks].
    max_evaluations
        Number of mappings tried, the start included; None: no limit. With it, equal seeds give
        equal results unless the time runs out.
    bound_ns
        A makespan that cannot be beaten; the search ends when it is reached.
    progress
        Called about 20 times a second with (evaluations, best makespan in ns).
    """
    placement, evaluations, interrupted = _core.search_mapping(
        native.core,
        _ids(start),
        _ids(order),
        _RULES[rule],
        -1 if max_evaluations is None else max_evaluations,
        time_limit_s,
        seed,
        bound_ns,
        progress,
    )
    return MappingReport(tuple(placement), evaluations, interrupted)


def _ids(values: Sequence[int]) -> IntArray:
    return np.fromiter(values, dtype=np.int64)
