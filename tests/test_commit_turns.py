"""Each costly test is in one turn, and the turns are about equally long."""

from __future__ import annotations

import math
import subprocess
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commit_turns import (
    NEAR_S,
    NUM_TURNS,
    balanced_turns,
    items_of_turn,
    number_of_commit,
    seconds_of,
    seed_of_commit,
    turn_of,
)
from tests.strategies import exact_cases

pytest_plugins = ["pytester"]

WEIGHTS = st.dictionaries(st.text(max_size=3), st.floats(0.1, 100), max_size=40)


@exact_cases(50)
@given(WEIGHTS, st.lists(st.floats(0, 100), max_size=NUM_TURNS))
def test_turns_differ_by_no_more_than_one_group(
    seconds: dict[str, float], begun: list[float]
) -> None:
    turns = balanced_turns(seconds, begun)
    assert turns.keys() == seconds.keys()
    loads = [*begun, *[0.0] * (NUM_TURNS - len(begun))]
    for group, turn in turns.items():
        loads[turn] += seconds[group]
    # Of the turns that got anything: what came last went to the shortest one.
    filled = [loads[turn] for turn in set(turns.values())]
    assert max(filled, default=0) - min(loads) <= max(seconds.values(), default=0) + 1e-6


@exact_cases(50)
@given(WEIGHTS)
def test_the_order_of_the_groups_does_not_matter(seconds: dict[str, float]) -> None:
    assert balanced_turns(dict(reversed(seconds.items()))) == balanced_turns(seconds)


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    """Tests of two files: some costly, one with cases, one slow."""
    text = """
        import pytest

        def test_quick(): pass

        @pytest.mark.costly
        def test_costly(): pass

        @pytest.mark.costly(9)
        @pytest.mark.parametrize("n", range(3))
        def test_cases(n): pass

        @pytest.mark.slow
        @pytest.mark.costly
        def test_slow(): pass
    """
    pytester.makeini("[pytest]\nmarkers =\n    costly\n    slow\n    gpu\n")
    return pytester.getitems(textwrap.dedent(text))


def test_every_costly_test_is_in_one_turn_and_the_others_in_all(items: list[pytest.Item]) -> None:
    taken = [
        [item.name for item in items_of_turn(items, turn, lambda item: item.name)]
        for turn in range(NUM_TURNS)
    ]
    for name in ("test_costly", "test_cases[0]", "test_cases[1]", "test_cases[2]"):
        assert sum(name in names for names in taken) == 1
    for name in ("test_quick", "test_slow"):
        assert all(name in names for names in taken)
    assert max(map(len, taken)) < 6


def test_the_tests_nearest_to_the_change_run_in_every_turn(items: list[pytest.Item]) -> None:
    distances = {"test_costly": 2.0, "test_cases[0]": 1.0, "test_cases[1]": NEAR_S}
    for turn in range(NUM_TURNS):
        names = {
            item.name
            for item in items_of_turn(
                items, turn, lambda item: item.name, lambda item: distances.get(item.name, math.inf)
            )
        }
        assert names >= {"test_costly", "test_cases[0]", "test_cases[1]"}


def test_the_nearest_tests_take_no_longer_than_their_time(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    costly\n    slow\n    gpu\n")
    tests = [f"@pytest.mark.costly({NEAR_S / 4})\ndef test_{i}(): pass" for i in range(40)]
    items = pytester.getitems("\n".join(["import pytest", *tests]))
    near = items_of_turn(items, 0, lambda item: item.name, lambda item: float(item.name[5:]))
    assert [item.name for item in near if int(item.name[5:]) < 6] == [f"test_{i}" for i in range(4)]


def test_what_shares_a_group_is_in_one_turn(items: list[pytest.Item]) -> None:
    taken = [len(items_of_turn(items, turn, lambda item: "all")) for turn in range(NUM_TURNS)]
    assert sorted(taken) == [2] * (NUM_TURNS - 1) + [6]


def test_seconds_of_a_mark_are_shared_by_its_cases(items: list[pytest.Item]) -> None:
    assert seconds_of(items[1:5]) == [2.0, 3.0, 3.0, 3.0]


def test_a_mark_has_a_time_that_is_one(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        mark = item.get_closest_marker("costly")
        assert mark is None or (len(mark.args) <= 1 and not mark.kwargs), item.nodeid
        assert mark is None or all(seconds > 0 for seconds in mark.args), item.nodeid


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=any", "-c", "user.email=any@example.com")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, message: str) -> int:
    """Make a commit and return its number."""
    git(folder, "commit", "--allow-empty", "--quiet", "--message", message)
    return number_of_commit(folder)


def test_a_commit_takes_the_turn_behind_that_of_the_one_before(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    assert [commit(tmp_path, message) for message in "abc"] == [1, 2, 3]
    git(tmp_path, "checkout", "--quiet", "-b", "side", "HEAD~1")
    assert [commit(tmp_path, message) for message in "def"] == [3, 4, 5]
    git(tmp_path, "checkout", "--quiet", "main")
    git(tmp_path, "merge", "--quiet", "--no-ff", "--no-edit", "side")
    assert number_of_commit(tmp_path) == 4, "a merge is one step"
    assert {turn_of(number) for number in range(4, 4 + NUM_TURNS)} == set(range(NUM_TURNS))


def test_without_its_history_a_commit_takes_any_turn(tmp_path: Path) -> None:
    whole, shallow, none = (tmp_path / name for name in ("whole", "shallow", "none"))
    none.mkdir()
    git(tmp_path, "init", "--quiet", str(whole))
    commit(whole, "a")
    commit(whole, "b")
    git(tmp_path, "clone", "--quiet", "--depth", "1", whole.as_uri(), str(shallow))
    seed = int(git(whole, "rev-parse", "HEAD")[:8], 16)
    assert (seed_of_commit(whole), number_of_commit(whole)) == (seed, 2)
    assert (seed_of_commit(shallow), number_of_commit(shallow)) == (seed, seed)
    assert (seed_of_commit(none), number_of_commit(none)) == (0, 0)
