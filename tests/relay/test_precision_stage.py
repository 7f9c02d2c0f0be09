"""How `precision="auto"` halves groups of tasks, and measures how far outputs are off."""

from __future__ import annotations

import numpy as np
import pytest

from heteroplace.pipeline.precision_stage import largest_error, largest_fitting

pytestmark = pytest.mark.relay


def test_a_group_that_does_not_fit_is_halved() -> None:
    tried: list[frozenset[int]] = []

    def fits(tasks: frozenset[int]) -> bool:
        tried.append(tasks)
        return not tasks & {2, 7}

    assert largest_fitting(range(10), fits, 100) == (frozenset(range(10)) - {2, 7}, {2, 7})
    assert largest_fitting(range(10), fits, 1) == (frozenset(), frozenset())
    few = largest_fitting(range(10), lambda tasks: len(tasks) < 4, 100)
    assert few == ({0, 1, 2}, set(range(3, 10)))


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.nan, 1.0], [1.0, 1.0], np.inf),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], np.inf),
    ],
)
def test_errors_are_relative_to_the_largest_value(
    output: list[float], expected: list[float], error: float
) -> None:
    assert largest_error([np.float32(output)], [np.float32(expected)]) == error


def test_integers_that_differ_are_wrong() -> None:
    assert largest_error([np.array([1, 2])], [np.array([1, 3])]) == np.inf
