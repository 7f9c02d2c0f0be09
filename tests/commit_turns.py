"""Tests marked `costly` -> the commits at which a run of CI takes them, by how long they take.

A commit takes one of `NUM_TURNS` parts, and the next one on its branch the next part. The parts are
about equally long: the longest work goes first, each to the part that is the shortest so far.

Source: R. L. Graham, Bounds on multiprocessing timing anomalies, doi:10.1137/0117039 (LPT).
"""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

NUM_TURNS = 20
"""In so many commits CI runs each costly test once."""

COSTLY_S = 2.0
"""Processor time of a costly test whose mark does not say it."""

NUM_BUILDS = 6
"""Parts of tests/cpp, of which a turn builds one or none, whatever is marked."""

BUILD_TURNS = 10
"""After so many turns the builds begin anew: each is in two of the turns."""

BUILD_S = 80.0
"""Processor time of building and running one."""


def seed_of_commit(folder: Path) -> int:
    """Return the first digits of the commit that is checked out, as a number; 0 without git."""
    return int(_git(folder, "rev-parse", "HEAD")[:8] or "0", 16)


def number_of_commit(folder: Path) -> int:
    """Return how many commits lead to the one that is checked out, a merge for one; its first
    digits where the history is not there."""
    if _git(folder, "rev-parse", "--is-shallow-repository") != "false":
        return seed_of_commit(folder)
    return int(_git(folder, "rev-list", "--count", "--first-parent", "HEAD") or "0")


def _git(folder: Path, *arguments: str) -> str:
    """What a command of git says; "" where there is none, or no commit."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        found = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def turn_of(number: int) -> int:
    """Return the turn of the commit of this number."""
    return number % NUM_TURNS


def build_of(turn: int) -> int | None:
    """Return which part of tests/cpp a turn builds; None: none."""
    build = turn % BUILD_TURNS
    return build if build < NUM_BUILDS else None


def is_costly(item: pytest.Item) -> bool:
    """Tell whether a test is of some commits alone; slow ones, and those of GPUs, are of none."""
    marks = [item.get_closest_marker(name) is not None for name in ("costly", "slow", "gpu")]
    return marks == [True, False, False]


def seconds_of(items: Sequence[pytest.Item]) -> list[float]:
    """Return the processor time of costly tests: a mark's is that of all its cases together."""
    functions = [item.nodeid.partition("[")[0] for item in items]
    num_cases = Counter(functions)
    marks = [item.get_closest_marker("costly") for item in items]
    return [
        (mark.args[0] if mark is not None and mark.args else COSTLY_S) / num_cases[function]
        for mark, function in zip(marks, functions, strict=True)
    ]


def items_of_turn(
    items: Sequence[pytest.Item],
    turn: int,
    group_of: Callable[[pytest.Item], str],
) -> list[pytest.Item]:
    """Return the tests that a turn takes: all that are not costly, and its groups of costly ones.

    Parameters
    ----------
    group_of
        What shares a group runs at the same commits.
    """
    costly = [item for item in items if is_costly(item)]
    seconds: dict[str, float] = defaultdict(float)
    for item, weight in zip(costly, seconds_of(costly), strict=True):
        seconds[group_of(item)] += weight
    builds = [BUILD_S if build_of(turn) is not None else 0.0 for turn in range(NUM_TURNS)]
    turns = balanced_turns(seconds, builds)
    return [item for item in items if not is_costly(item) or turns[group_of(item)] == turn]


def balanced_turns(seconds: Mapping[str, float], begun: Iterable[float] = ()) -> dict[str, int]:
    """Return a turn for each group; ties go to the first name and to the first turn.

    `begun` is what the first turns have before.
    """
    loads = [*begun][:NUM_TURNS]
    loads += [0.0] * (NUM_TURNS - len(loads))
    turns = {}
    for group in sorted(seconds, key=lambda group: (-seconds[group], group)):
        turn = loads.index(min(loads))
        turns[group] = turn
        loads[turn] += seconds[group]
    return turns
