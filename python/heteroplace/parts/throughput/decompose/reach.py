"""Graph -> which of some tasks are reached from others, and the longest path among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from heteroplace.model.graph import TaskGraph


def reached(
    begin: Iterable[int], neighbours: Sequence[Sequence[int]], inside: Collection[int] | None = None
) -> set[int]:
    """Return the tasks of `begin` and what is reached from them.

    Parameters
    ----------
    neighbours
        [num_tasks], where each task leads: `successors` or `predecessors` of a graph.
    inside
        Tasks that may be passed; None: all. Those of `begin` are passed whether inside or not.
    """
    seen = set(begin)
    waiting = list(seen)
    while waiting:
        for other in neighbours[waiting.pop()]:
            if other not in seen and (inside is None or other in inside):
                seen.add(other)
                waiting.append(other)
    return seen


def longest_path_ns(
    graph: TaskGraph, tasks: Iterable[int], time_ns: Mapping[int, int] | Sequence[int]
) -> int:
    """Return the longest path over `tasks`, given ascending; 0 if there are none.

    Parameters
    ----------
    time_ns
        For each task the time that it takes.
    """
    finish: dict[int, int] = {}
    for task in tasks:
        start = max((finish[o] for o in graph.predecessors[task] if o in finish), default=0)
        finish[task] = start + time_ns[task]
    return max(finish.values(), default=0)
