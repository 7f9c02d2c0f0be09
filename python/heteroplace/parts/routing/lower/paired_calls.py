"""Versions of a routed module -> which of their calls are one call at several capacities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from heteroplace.lower.kernels import KernelCall, Value
from heteroplace.lower.segment_calls import NetworkPart
from heteroplace.lower.segments import ValueName
from heteroplace.model.graph import TaskGraph
from heteroplace.parts.routing.lower.routed_module import Branch


@dataclass(frozen=True)
class Version:
    """All branches at one of their capacities."""

    part: NetworkPart
    capacities: Mapping[Branch, int]
    """Of the branches that are in it; 0: its cells are whole tensors."""


@dataclass
class PairedCall:
    """The calls of several versions that are one."""

    task: str
    branch: Branch
    row_bytes: tuple[int | None, ...]
    """Of what it makes; None: it is whole."""
    is_fixed: bool = False
    """Whether it reads no rows, as what brings weights into another layout: what it makes is whole,
    and the same in every round. It is of one version, as layouts are."""
    calls: dict[int, KernelCall] = field(default_factory=dict)
    """By version."""
    writes: tuple[int, ...] = ()


def paired_calls(
    graph: TaskGraph,
    versions: Sequence[Version],
    whole: Collection[ValueName],
    variables: Collection[str],
) -> list[PairedCall]:
    """Return the calls of branches: those of a task in their order, tasks in that of the graph.

    Counted from the last one on, those of a task at one place are paired where they make values of
    one type with equal rows: in front of them a version may have changed a layout.

    Parameters
    ----------
    whole
        What is no rows, though its size may say so.
    variables
        The variables of the cut module that are rows.
    """
    branch_of = {task.name: task.branch for task in graph.tasks}
    roots = {
        (at, _root(each.part, value))
        for at, each in enumerate(versions)
        for name, value in zip(each.part.exports, each.part.calls.outputs, strict=True)
        if name in whole
    }
    pairs: dict[tuple[object, ...], PairedCall] = {}
    for version, each in enumerate(versions):
        values = each.part.calls.values
        counts = Counter(call.task for call in each.part.calls.calls)
        of_rows = _values_of_rows(each.part, variables)
        for call in each.part.calls.calls:
            counts[call.task] -= 1
            branch = branch_of[call.task]
            assert branch is not None  # others are left out of versions
            capacity = each.capacities[branch]
            is_fixed = of_rows.isdisjoint(call.writes)
            rows = tuple(
                None
                if is_fixed or (version, value) in roots
                else _row_bytes(values[value], capacity)
                for value in call.writes
            )
            types = tuple(values[value].dtype for value in call.writes)
            key = (call.task, counts[call.task], rows, types, version if is_fixed else None)
            group = pairs.setdefault(key, PairedCall(call.task, branch, rows, is_fixed))
            group.calls[version] = call
    place = {task.name: at for at, task in enumerate(graph.tasks)}
    return sorted(pairs.values(), key=lambda group: place[group.task])


def _root(part: NetworkPart, value: int) -> int:
    while (alias_of := part.calls.values[value].alias_of) is not None:
        value = alias_of
    return value


def _values_of_rows(part: NetworkPart, variables: Collection[str]) -> set[int]:
    """The values with bytes of their own that hang on rows, or that others read: those are rows
    where a branch makes them of its weights alone."""
    values = {_root(part, value) for value in part.calls.outputs}
    values |= {value for name, value in part.imports.items() if name.name in variables}
    num_found = -1
    while len(values) != num_found:  # one segment may read what a later one makes
        num_found = len(values)
        for call in part.calls.calls:
            if not values.isdisjoint(_root(part, value) for value in call.reads):
                values.update(call.writes)
    return values


def _row_bytes(value: Value, capacity: int) -> int | None:
    """Bytes of a row of a value at a capacity; None: it is not made of so many rows."""
    is_rows = capacity and math.prod(value.shape) % capacity == 0
    return value.bytes // capacity if is_rows else None
