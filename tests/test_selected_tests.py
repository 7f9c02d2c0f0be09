"""CI takes costly tests that the change reaches, in a stated order, within a time."""

from __future__ import annotations

import math
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.selected_tests import (
    BUILD_S,
    COLLECTED,
    LIMIT_S,
    Group,
    by_priority,
    choose,
    group_of,
    groups_of,
    is_costly,
    seconds_of,
)
from tests.strategies import exact_cases

pytest_plugins = ["pytester"]

GROUPS = st.lists(
    st.builds(
        Group,
        st.text("ab", max_size=3),
        st.sampled_from("xyz"),
        st.booleans(),
        st.one_of(st.just(math.inf), st.integers(0, 3).map(float)),
        st.integers(1, 9).map(float),
    ),
    max_size=12,
    unique_by=lambda group: group.name,
)


@exact_cases(50)
@given(GROUPS, st.floats(0, 60))
def test_chosen_tests_reach_the_change_and_fit_into_the_time(
    groups: list[Group], limit_s: float
) -> None:
    chosen = [group for group in groups if group.name in choose(groups, limit_s)]
    assert all(math.isfinite(group.distance) for group in chosen)
    assert sum(group.seconds for group in chosen) <= limit_s


@exact_cases(50)
@given(GROUPS, st.floats(0, 60))
def test_a_test_that_is_not_chosen_would_not_fit_behind_those_before_it(
    groups: list[Group], limit_s: float
) -> None:
    chosen = choose(groups, limit_s)
    taken_s = 0.0
    for group in by_priority(groups):
        if group.name in chosen:
            taken_s += group.seconds
        else:
            assert taken_s + group.seconds > limit_s


@exact_cases(50)
@given(GROUPS)
def test_the_order_of_collection_does_not_matter(groups: list[Group]) -> None:
    assert choose(groups, 20) == choose(groups[::-1], 20)


def test_files_without_quick_tests_come_first_and_then_one_test_of_each_other_file() -> None:
    groups = [
        Group("only costly", "o", False, 3, 4),
        Group("only costly, dearer", "o", False, 3, 5),
        Group("far", "f", True, 3, 1),
        Group("near", "n", True, 1, 5),
        Group("near and cheap", "n", True, 1, 2),
        Group("near and cheaper", "n", True, 1, 1),
        Group("unreached", "u", False, math.inf, 1),
    ]
    names = [group.name for group in by_priority(groups)]
    firsts = ["only costly", "near and cheaper", "far"]
    assert names == [*firsts, "near and cheap", "near", "only costly, dearer"]
    assert choose(groups, 8) == {*firsts, "near and cheap"}
    assert choose(groups, 6) == {*firsts}


@pytest.fixture
def items(pytester: pytest.Pytester) -> list[pytest.Item]:
    """Tests of a file: some costly, one with cases, two of a part, one slow."""
    text = """
        import pytest

        def test_quick(): pass

        @pytest.mark.costly
        def test_costly(): pass

        @pytest.mark.costly(9)
        @pytest.mark.parametrize("n", range(3))
        def test_cases(n): pass

        @pytest.mark.costly
        @pytest.mark.part("threads", "a.cc", "b.cc")
        @pytest.mark.parametrize("n", range(2))
        def test_part(n): pass

        @pytest.mark.slow
        @pytest.mark.costly
        def test_slow(): pass
    """
    pytester.makeini("[pytest]\nmarkers =\n    costly\n    slow\n    gpu\n    part\n")
    return pytester.getitems(textwrap.dedent(text))


def test_slow_tests_are_not_costly_ones_of_ci(items: list[pytest.Item]) -> None:
    names = {item.name.partition("[")[0] for item in items if is_costly(item)}
    assert names == {"test_costly", "test_cases", "test_part"}


def test_seconds_of_a_mark_are_shared_by_its_cases(items: list[pytest.Item]) -> None:
    assert seconds_of(items[1:7]) == [2.0, 3.0, 3.0, 3.0, BUILD_S / 2, BUILD_S / 2]


def test_tests_of_a_part_run_together_and_are_as_near_as_the_nearest(
    items: list[pytest.Item],
) -> None:
    distances = {"test_part[0]": 3.0, "test_part[1]": 1.0}
    groups = groups_of(items, lambda item: distances.get(item.name, math.inf))
    assert [group.distance for group in groups] == [math.inf] * 4 + [1]
    assert [group.seconds for group in groups] == [2, 3, 3, 3, BUILD_S]
    assert [group.has_quick_tests for group in groups] == [True] * 4 + [False]
    assert group_of(items[5]) == group_of(items[6]) == "part threads"


def test_a_mark_has_a_time_that_is_one(request: pytest.FixtureRequest) -> None:
    for item in request.config.stash[COLLECTED]:
        mark = item.get_closest_marker("costly")
        assert mark is None or (len(mark.args) <= 1 and not mark.kwargs), item.nodeid
        assert mark is None or all(seconds > 0 for seconds in mark.args), item.nodeid


def test_there_is_time_for_each_file_that_has_only_costly_tests(
    request: pytest.FixtureRequest,
) -> None:
    # Else a change that reaches every file would leave some out.
    cheapest: dict[str, float] = {}
    for group in groups_of(request.config.stash[COLLECTED], lambda _: 0):
        if not group.has_quick_tests:
            cheapest[group.file] = min(group.seconds, cheapest.get(group.file, math.inf))
    total_s = sum(cheapest.values())
    assert total_s <= LIMIT_S / 2, (
        f"one test of each file without quick tests takes {total_s:.0f} s, more than half of the "
        f"limit of {LIMIT_S:.0f} s: add a quick test to the files whose cheapest one takes long"
    )
