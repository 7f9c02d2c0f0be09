"""Tests marked `costly` -> those that CI runs: the nearest to the change, and a share in turn.

The nearest tests are those whose imports lead to a changed file in the fewest steps. They take up
to `NEAR_S` seconds. A commit also takes one of `NUM_TURNS` parts, and the next commit the next one.
The parts are about equally long: the longest work goes first, to the shortest part so far.

Source: R. L. Graham, Bounds on multiprocessing timing anomalies, doi:10.1137/0117039 (LPT).
"""

from __future__ import annotations

import math
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

NEAR_S = 180.0
"""Processor time of the costly tests that run because they are near to the change."""

CHANGE_S = 86_400
"""A change that is not ahead of the main branch is what was committed within so many seconds."""

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


def files_of_change(folder: Path) -> list[str]:
    """Return the changed files, relative to the root of the checkout; none without git.

    The change is everything since `origin/main`, uncommitted work included. Where `origin/main` is
    the newest commit, the change is the last day of commits.
    """
    head = _git(folder, "rev-parse", "HEAD")
    base = _git(folder, "merge-base", "origin/main", "HEAD")
    if base in ("", head):
        newest = int(_git(folder, "log", "-1", "--format=%ct") or "0")
        base = _git(folder, "rev-list", "-1", f"--before={newest - CHANGE_S}", "HEAD")
    return _git(folder, "diff", "--name-only", base).splitlines() if base else []


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
    distance_of: Callable[[pytest.Item], float] = lambda item: math.inf,
) -> list[pytest.Item]:
    """Return the tests that are not costly, and the costly ones of a turn or near to the change.

    Parameters
    ----------
    group_of
        What shares a group runs at the same commits.
    distance_of
        Imports between a test and the change; infinite where it does not reach the test.
    """
    costly = [item for item in items if is_costly(item)]
    seconds: dict[str, float] = defaultdict(float)
    for item, weight in zip(costly, seconds_of(costly), strict=True):
        seconds[group_of(item)] += weight
    builds = [BUILD_S if build_of(turn) is not None else 0.0 for turn in range(NUM_TURNS)]
    turns = balanced_turns(seconds, builds)
    distances = {group_of(item): distance_of(item) for item in costly}
    taken = {group for group in turns if turns[group] == turn}
    taken |= _near_groups(seconds, distances)
    return [item for item in items if not is_costly(item) or group_of(item) in taken]


def _near_groups(seconds: Mapping[str, float], distances: Mapping[str, float]) -> set[str]:
    """The nearest groups within `NEAR_S`; ties go to the shorter one, then to the first name."""
    near, left_s = set(), NEAR_S
    for group in sorted(seconds, key=lambda group: (distances[group], seconds[group], group)):
        if math.isfinite(distances[group]) and seconds[group] <= left_s:
            near.add(group)
            left_s -= seconds[group]
    return near


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
