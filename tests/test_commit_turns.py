"""Each costly test is in one turn, and the turns are about equally long."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commit_turns import NUM_TURNS, balanced_turns, items_of_turn, seconds_of
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
