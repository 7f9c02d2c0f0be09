"""Names of tasks and what they read and make -> the tasks in topological order."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from heteroplace.errors import GraphError


def topological_order(
    graph: str, reads: Mapping[str, Sequence[str]], producer: Mapping[str, str | None]
) -> list[str]:
    """Return the tasks with every producer before its consumers; ties by the order of `reads`.

    Parameters
    ----------
    graph
        What to call it in messages.
    reads
        Names of the tensors that each task reads.
    producer
        Name of the task that makes each tensor; None: a model input.

    Raises
    ------
    GraphError
        There is a cycle; some of its tasks are named.
    """
    names = list(reads)
    position = {name: index for index, name in enumerate(names)}
    followers: dict[str, list[str]] = {name: [] for name in names}
    waiting = dict.fromkeys(names, 0)
    for task, tensors in reads.items():
        before = {producer[tensor] for tensor in tensors} - {None}
        waiting[task] = len(before)
        for maker in before:
            if maker is not None:
                followers[maker].append(task)
    ready = [position[name] for name in names if waiting[name] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        name = names[heapq.heappop(ready)]
        order.append(name)
        for follower in followers[name]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, position[follower])
    if len(order) < len(names):
        stuck = [name for name in names if waiting[name] > 0]
        raise GraphError(
            f"graph {graph!r} has a cycle through some of: {', '.join(stuck[:8])}; "
            f"a task graph must be acyclic"
        )
    return order
