"""Properties take their number of random cases from one place: at least 1,000 where CI is set."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.strategies import num_cases

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize(("ci", "count", "expected"), [("", 40, 40), ("1", 40, 1000)])
def test_ci_takes_at_least_1000_cases(
    ci: str, count: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    assert num_cases(count).max_examples == expected


def test_properties_that_say_nothing_take_that_many_too() -> None:
    assert settings().max_examples == num_cases(100).max_examples
    assert settings().deadline is None


def test_no_test_says_a_number_of_cases_by_itself() -> None:
    own = {Path(__file__).resolve(), TESTS / "strategies.py"}
    files = set(TESTS.rglob("*.py")) - own
    assert files
    assert [str(path) for path in sorted(files) if "max_examples" in path.read_text()] == []
