"""What the importers of published task graphs share: how they read, and the values they return."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from heteroplace.errors import GraphError
from heteroplace.files.reader import Faults, ObjectReader, a_count, read_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph

T = TypeVar("T")

NS_PER_MS = 1_000_000
TENSOR_SHARE = 0.001
"""Tensors must not use more than this part of a memory: the published files charge none."""


@dataclass(frozen=True)
class Imported:
    """A published instance in the package's own values."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    transfer_error_ns: int
    """Largest difference between a transfer time here and in the file, in ns."""


@dataclass(frozen=True)
class Edge:
    """An edge as a file has it."""

    src: int
    """The `id` in the file of the task that it leaves."""
    dst: int
    reader: ObjectReader
    """What else the file says of it."""


def read_import(path: str | os.PathLike[str], read: Callable[[ObjectReader], T]) -> T:
    """Return what `read` makes of the JSON object in a file.

    Raises
    ------
    GraphError
        The file cannot be read, or `read` noted faults: all are named, with their JSON paths.
    """
    faults = Faults(os.fspath(path), GraphError)
    value = read(ObjectReader(read_json(path, GraphError), "$", faults))
    faults.check()
    return value


def read_tasks(reader: ObjectReader, key: str) -> list[tuple[int, ObjectReader]]:
    """Return (`id`, reader) of each object in the list at `key`; note ids that occur twice."""
    tasks: list[tuple[int, ObjectReader]] = []
    seen: set[int] = set()
    for task in reader.objects(key, is_required=True):
        task_id = task.required("id", a_count, 0)
        if task_id in seen:
            task.faults.add(f"{task.path}.id", f"id {task_id} is used twice")
        seen.add(task_id)
        tasks.append((task_id, task))
    return tasks


def read_edges(reader: ObjectReader, src_key: str, dst_key: str, known: set[int]) -> list[Edge]:
    """Return the objects in the list "edges"; note ends that are not the id of a `known` task."""

    def end(edge: ObjectReader, key: str) -> int:
        task = edge.required(key, a_count, 0)
        if task not in known and edge.has(key):
            edge.faults.add(f"{edge.path}.{key}", f"there is no task with id {task}")
        return task

    readers = reader.objects("edges", is_required=True)
    return [Edge(end(edge, src_key), end(edge, dst_key), edge) for edge in readers]


def power_of_ten(at_least: float) -> int:
    """Return the smallest power of ten, 1 or more, that is not below `at_least`.

    >>> power_of_ten(0.5), power_of_ten(101)
    (1, 1000)
    """
    value = 1
    while value < at_least:
        value *= 10
    return value
