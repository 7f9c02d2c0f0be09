"""Properties take their number of random cases from one place, and share the cases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus import NUM_CASES
from tests.strategies import Instance, exact_cases, instances, num_cases

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("kind", "variables", "expected"),
    [
        (num_cases, (), 40),
        (num_cases, ("CI",), 500),
        (num_cases, ("CI", "ALL_CASES"), 1000),
        (exact_cases, (), 40),
        (exact_cases, ("CI",), 50),
        (exact_cases, ("CI", "ALL_CASES"), 1000),
        (exact_cases, ("ALL_CASES",), 1000),
    ],
)
def test_ci_takes_at_least_so_many_cases(
    kind: Callable[[int], settings],
    variables: tuple[str, ...],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("CI", "ALL_CASES"):
        monkeypatch.setenv(variable, "1" if variable in variables else "")
    assert kind(40).max_examples == expected
    assert kind(2000).max_examples == 2000


def test_properties_that_say_nothing_take_as_many_as_those_without_an_exact_solver() -> None:
    assert settings().max_examples == num_cases(100).max_examples
    assert settings().deadline is None


def test_no_test_says_a_number_of_cases_by_itself() -> None:
    own = {Path(__file__).resolve(), TESTS / "strategies.py", TESTS / "corpus.py"}
    files = set(TESTS.rglob("*.py")) - own
    assert files
    assert [str(path) for path in sorted(files) if "max_examples" in path.read_text()] == []


def cases_seen(strategy: st.SearchStrategy[Instance], count: int) -> list[Instance]:
    seen = []

    @given(strategy)
    @settings(max_examples=count)
    def collect(case: Instance) -> None:
        seen.append(case)

    collect()
    return seen


def test_a_property_sees_each_of_its_cases_and_they_differ() -> None:
    seen = cases_seen(instances(max_tasks=3), NUM_CASES)
    assert len({repr(case) for case in seen}) == NUM_CASES


def test_properties_of_the_same_number_share_their_cases() -> None:
    found = [cases_seen(instances(max_tasks=3), 20) for _ in range(2)]
    found.append(cases_seen(instances(3), 20))
    identities = [{id(case) for case in cases} for cases in found]
    assert identities[0] == identities[1] == identities[2]
    assert len(identities[0]) == 20


def test_a_failure_that_large_cases_have_shrinks_to_the_smallest_of_them() -> None:
    every = sorted(cases_seen(instances(max_tasks=5), NUM_CASES), key=lambda case: len(repr(case)))
    limit = len(repr(every[NUM_CASES // 2]))
    failing = []

    @given(instances(max_tasks=5))
    @settings(max_examples=NUM_CASES, database=None)
    def is_small(case: Instance) -> None:
        if len(repr(case)) >= limit:
            failing.append(case)
            raise ValueError

    with pytest.raises(ValueError):
        is_small()
    assert len(repr(failing[-1])) == limit
