"""What the importers of published task graphs share: the values they return and number checks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.json_reader import Faults, ObjectReader, a_count

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


def unique_ids(readers: Iterable[ObjectReader], faults: Faults) -> list[int]:
    """Return the `id` of each object; note those that occur twice."""
    ids: list[int] = []
    seen: set[int] = set()
    for reader in readers:
        value = reader.required("id", a_count, 0)
        if value in seen:
            faults.add(f"{reader.path}.id", f"id {value} is used twice")
        seen.add(value)
        ids.append(value)
    return ids


def edge_end(reader: ObjectReader, key: str, known: set[int]) -> int:
    """Return the task id at `key` of an edge; note a fault if there is no such task."""
    value = reader.required(key, a_count, 0)
    if value not in known and reader.has(key):
        reader.faults.add(f"{reader.path}.{key}", f"there is no task with id {value}")
    return value


def power_of_ten(at_least: float) -> int:
    """Return the smallest power of ten, 1 or more, that is not below `at_least`.

    >>> power_of_ten(0.5), power_of_ten(101)
    (1, 1000)
    """
    value = 1
    while value < at_least:
        value *= 10
    return value
