"""TaskGraph -> tensors that are in a memory at once by lifetime, for rows of an exact model.

While a task runs, its memory holds all that it reads and makes. It also holds what a task before
made there for a task behind it that reads it there. Every plan needs as much, whatever its order;
most need more, so that these rows prove bounds and no plan fits because of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.solve.exact.load_rows import MAX_ROW_TASKS, members, reach_sets


@dataclass(frozen=True)
class Passing:
    """A tensor that is made before a task runs and read behind it."""

    bytes: int
    producer: int
    readers: tuple[int, ...]
    """Those behind the task; empty: it stays to the end where it is made."""


@dataclass(frozen=True)
class LiveRow:
    """What a memory holds while a task runs there."""

    task: int
    bytes: int
    """What it reads and makes."""
    passing: tuple[Passing, ...]
    """It is there if its producer and one of its readers run in the memory."""


def live_rows(graph: TaskGraph, cluster: Cluster, memory: int) -> Iterator[LiveRow]:
    """Yield the rows of the tasks for one memory, without model inputs that are always there.

    In graphs of more than MAX_ROW_TASKS tasks nothing is passing: there would be too much.
    """
    count = len(graph.tasks)
    # Without a host model inputs are everywhere and charged nowhere.
    is_inside = cluster.host in (None, memory)
    is_free = [tensor.producer is None and is_inside for tensor in graph.tensors]
    staying = set(graph.outputs) if is_inside else set()
    before = reach_sets(graph.predecessors, range(count))
    after = reach_sets(graph.successors, range(count - 1, -1, -1))
    for task in range(count):
        own = {*graph.task_inputs[task], *graph.task_outputs[task]}
        passing = []
        for maker in members(before[task]) if count <= MAX_ROW_TASKS else ():
            for tensor in set(graph.task_outputs[maker]) - own:
                value = graph.tensors[tensor]
                readers = tuple(each for each in value.consumers if after[task] >> each & 1)
                if value.bytes and (readers or tensor in staying):
                    readers = () if tensor in staying else readers
                    passing.append(Passing(value.bytes, maker, readers))
        num_bytes = sum(graph.tensors[tensor].bytes for tensor in own if not is_free[tensor])
        if num_bytes or passing:
            yield LiveRow(task, num_bytes, tuple(passing))


def kept_bytes(graph: TaskGraph, cluster: Cluster, memory: int) -> int:
    """Return what the tensors take that are in a memory at the end, whatever the placement."""
    if memory != cluster.host:
        return 0
    return sum(graph.tensors[tensor].bytes for tensor in {*graph.outputs} - {*graph.inputs})
