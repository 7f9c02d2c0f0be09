"""What the importers of published task graphs share: how they read, and the values they return."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from msgspec import Meta, Struct

from heteroplace.errors import GraphError
from heteroplace.files.faults import Faults
from heteroplace.files.fields.fields import MAX_NUMBER, Count
from heteroplace.files.reader import read_json, read_struct
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph

S = TypeVar("S", bound=Struct)

Number = Annotated[Count | Annotated[float, Meta(ge=0, lt=MAX_NUMBER)], Meta(title="a number >= 0")]
"""Whole numbers stay exact."""
NS_PER_MS = 1_000_000
TENSOR_SHARE = 0.001
"""Tensors must not use more than this part of a memory: the published files charge none."""


@dataclass(frozen=True)
class PublishedInstance:
    """A published instance in the package's own values."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    transfer_error_ns: int
    """Largest difference between a transfer time here and in the file, in ns."""


class TaskEntry(Protocol):
    """A task as a file has it."""

    id: int


class EdgeEntry(Protocol):
    """An edge as a file has it."""

    src: int
    """The `id` of the task that it leaves."""
    dst: int


def read_import(path: str | os.PathLike[str], file: type[S]) -> tuple[S, Faults]:
    """Return what is in a file, and its faults so far; the caller adds those of meaning.

    Raises
    ------
    GraphError
        The file cannot be read.
    """
    return read_struct(read_json(path, GraphError), file, os.fspath(path), GraphError)


def check_ids(tasks: Sequence[TaskEntry], key: str, faults: Faults) -> None:
    """Note ids that occur twice in the list at `key`."""
    seen: set[int] = set()
    for index, task in enumerate(tasks):
        if task.id in seen:
            faults.add((key, index, "id"), f"id {task.id} is used twice")
        seen.add(task.id)


def check_ends(
    edges: Sequence[EdgeEntry], keys: tuple[str, str], names: Collection[int], faults: Faults
) -> None:
    """Note ends of edges that are not the id of a task.

    Parameters
    ----------
    edges
        All in the list "edges".
    keys
        Of both ends in the file.
    names
        Ids of the tasks.
    faults
        Takes them.
    """
    for index, edge in enumerate(edges):
        for key, task in zip(keys, (edge.src, edge.dst), strict=True):
            if task not in names:
                faults.add(("edges", index, key), f"there is no task with id {task}")


def power_of_ten(at_least: float) -> int:
    """Return the smallest power of ten, 1 or more, that is not below `at_least`.

    >>> power_of_ten(0.5), power_of_ten(101)
    (1, 1000)
    """
    value = 1
    while value < at_least:
        value *= 10
    return value
