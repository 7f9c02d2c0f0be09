"""TaskGraph -> sets of tasks that all run between two others, for redundant rows of exact models.

Whatever the order, a device runs the tasks between two others one after the other:

    start of `after` >= finish of `before` + times of those tasks of `tasks` that run on it

for every pair that reach each other, and with the begin and the end of the plan for sources and
sinks. A precedence-by-precedence model only knows the longest path between the two; these rows are
what lets a solver prove anything where the devices are busy all the time. They hold for every plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heteroplace.model.graph import TaskGraph

MAX_ROW_TASKS = 60
"""In larger graphs only the rows from the begin and to the end are given: pairs are too many."""
_MIN_BETWEEN = 2
"""Fewer tasks between a pair are a path."""


@dataclass(frozen=True)
class LoadRow:
    """Tasks that run between two others."""

    before: int | None
    """Task that has finished when the first of `tasks` starts; None: the begin of the plan."""
    after: int | None
    """Task that starts when the last has finished; None: the end of the plan."""
    tasks: tuple[int, ...]
    """Ascending."""


def load_rows(graph: TaskGraph) -> Iterator[LoadRow]:
    """Yield the rows of a graph, those of each task together. O(tasks^3 / 64)."""
    count = len(graph.tasks)
    before = reach_sets(graph.predecessors, range(count))
    after = reach_sets(graph.successors, range(count - 1, -1, -1))
    for task in range(count):
        if before[task]:
            yield LoadRow(None, task, members(before[task]))
        if after[task]:
            yield LoadRow(task, None, members(after[task]))
        if count > MAX_ROW_TASKS:
            continue
        for other in members(before[task]):
            between = before[task] & after[other]
            if between.bit_count() >= _MIN_BETWEEN:
                yield LoadRow(other, task, members(between))


def reach_sets(neighbours: tuple[tuple[int, ...], ...], order: range) -> list[int]:
    """Return for each task the set of those that it reaches, as bits.

    Parameters
    ----------
    neighbours
        [num_tasks]: those that it reaches in one step.
    order
        All tasks, each behind its neighbours.
    """
    reach = [0] * len(neighbours)
    for task in order:
        for other in neighbours[task]:
            reach[task] |= reach[other] | 1 << other
    return reach


def members(bits: int) -> tuple[int, ...]:
    """Return the tasks of a set that is given as bits, ascending."""
    return tuple(task for task in range(bits.bit_length()) if bits >> task & 1)
