"""Tests marked `costly` -> those that a run of CI takes, by their imports and their time.

A run takes only tests that the change reaches, and at most `LIMIT_S` seconds of them. First comes
one test of each file that has only costly ones, then one of each other file, then the rest. In each
round the nearest tests come first, and of equally near ones the cheapest. The number of the commit
has no say in it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

LIMIT_S = 300.0
"""Processor time of the costly tests of a run. A test holds that the first round fits in."""

COSTLY_S = 2.0
"""Processor time of a costly test whose mark does not say it."""

BUILD_S = 80.0
"""Processor time of a part of tests/cpp: of its build and of its programs."""

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests of a run, before any is left out."""

KIND = pytest.StashKey[str]()
"""Whether the change reaches a costly test that a run leaves out: "reached" or "unreached"."""


@dataclass(frozen=True)
class Group:
    """Tests that run together: all cases of a part of tests/cpp, else a single case."""

    name: str
    file: str
    has_quick_tests: bool
    """Whether the file has tests that always run."""
    distance: float
    """Imports between the file and the change; infinite where the change does not reach it."""
    seconds: float
    """Processor time."""


def is_costly(item: pytest.Item) -> bool:
    """Tell whether only some runs of CI take a test; none takes the slow ones and those of GPUs."""
    marks = [item.get_closest_marker(name) is not None for name in ("costly", "slow", "gpu")]
    return marks == [True, False, False]


def group_of(item: pytest.Item) -> str:
    """Return the name of the group of a test."""
    part = item.get_closest_marker("part")
    return f"part {part.args[0]}" if part is not None else item.nodeid


def seconds_of(items: Sequence[pytest.Item]) -> list[float]:
    """Return the processor time of costly tests: a mark's is that of all its cases together."""
    functions = [item.nodeid.partition("[")[0] for item in items]
    num_cases = Counter(functions)
    part_sizes = Counter(map(group_of, items))

    def seconds(item: pytest.Item, function: str) -> float:
        if item.get_closest_marker("part") is not None:
            return BUILD_S / part_sizes[group_of(item)]
        mark = item.get_closest_marker("costly")
        return (mark.args[0] if mark is not None and mark.args else COSTLY_S) / num_cases[function]

    return [seconds(item, function) for item, function in zip(items, functions, strict=True)]


def groups_of(
    items: Sequence[pytest.Item], distance_of: Callable[[pytest.Item], float]
) -> list[Group]:
    """Return the groups of the costly tests among these, which are those of whole files.

    The distance of a group is that of its nearest test. The parts of tests/cpp count as a file.
    """
    costly = [item for item in items if is_costly(item)]
    marks = ("costly", "slow", "gpu")
    quick = {str(item.path) for item in items if not any(map(item.get_closest_marker, marks))}
    groups: dict[str, Group] = {}
    for item, seconds in zip(costly, seconds_of(costly), strict=True):
        name, distance = group_of(item), distance_of(item)
        if name in groups:
            distance = min(distance, groups[name].distance)
            seconds += groups[name].seconds
        file = f"{item.path} parts" if item.get_closest_marker("part") else str(item.path)
        groups[name] = Group(name, file, file in quick, distance, seconds)
    return list(groups.values())


def by_priority(groups: Iterable[Group]) -> Iterator[Group]:
    """Yield the groups that a change reaches, round by round; see the head of this file."""
    reached = [group for group in groups if math.isfinite(group.distance)]
    reached.sort(key=lambda group: (group.distance, group.seconds, group.name))
    firsts = {group.file: group for group in reversed(reached)}
    yield from (group for group in reached if is_first(group, firsts) and not group.has_quick_tests)
    yield from (group for group in reached if is_first(group, firsts) and group.has_quick_tests)
    yield from (group for group in reached if not is_first(group, firsts))


def is_first(group: Group, firsts: Mapping[str, Group]) -> bool:
    """Tell whether a group is the first one of its file."""
    return firsts[group.file] is group


def choose(groups: Iterable[Group], limit_s: float) -> set[str]:
    """Return the names of the groups that a run takes: those that fit, in their priority.

    Complexity: O(n log n) in the number of groups.
    """
    chosen, left_s = set(), limit_s
    for group in by_priority(groups):
        if group.seconds <= left_s:
            chosen.add(group.name)
            left_s -= group.seconds
    return chosen
