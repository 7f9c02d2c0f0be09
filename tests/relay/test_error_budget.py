"""How `precision="auto"` measures how far outputs are off, and which tasks it takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from heteroplace.pipeline.error_budget import largest_error, likely_error, most_gain_within

pytestmark = pytest.mark.relay


def within(
    limit: float, error_of: Callable[[frozenset[int]], float]
) -> Callable[[frozenset[int]], bool]:
    return lambda tasks: error_of(tasks) <= limit


def test_tasks_that_add_most_error_for_their_gain_are_left_out() -> None:
    rng, shares = np.random.default_rng(0), []
    for _ in range(20):
        gains = dict(enumerate(rng.integers(1, 100, 10).tolist()))
        squares = rng.random(10)

        def error_of(tasks: frozenset[int], squares: np.ndarray = squares) -> float:
            return float(squares[sorted(tasks)].sum() ** 0.5)

        def gain_of(tasks: frozenset[int], gains: dict[int, int] = gains) -> int:
            return sum(gains[task] for task in tasks)

        subsets = [frozenset(each) for size in range(11) for each in combinations(range(10), size)]
        for limit in (0.5, 1.0, 1.5, 3.5):
            chosen = most_gain_within(gains, error_of, within(limit, error_of))
            assert error_of(chosen) <= limit
            best = max(gain_of(tasks) for tasks in subsets if error_of(tasks) <= limit)
            shares.append(gain_of(chosen) / best if best else 1.0)
    assert np.mean(shares) > 0.95


def test_one_task_that_moves_outputs_far_stays_out_of_many() -> None:
    tried: list[frozenset[int]] = []

    def error_of(tasks: frozenset[int]) -> float:
        tried.append(tasks)
        return np.inf if 7 in tasks else 0.01 * len(tasks) ** 0.5

    fits = within(1.0, error_of)
    few = most_gain_within(dict.fromkeys(range(40), 5), error_of, fits)
    assert few == set(range(40)) - {7}
    assert len(tried) < 60
    neighbours = most_gain_within(dict.fromkeys(range(400), 5), error_of, fits)
    assert 7 not in neighbours and len(neighbours) > 390
    assert most_gain_within({7: 5}, error_of, fits) == frozenset()


def test_tasks_without_gain_come_last() -> None:
    def error_of(tasks: frozenset[int]) -> float:
        return len(tasks) - 0.5

    assert most_gain_within({0: -5, 1: 1_000}, error_of, within(1.0, error_of)) == {1}


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


def test_ten_more_inputs_are_mostly_within_the_likely_error() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        seen, more = np.exp(rng.normal(-5, 0.3, 16)), np.exp(rng.normal(-5, 0.3, 10))
        held += max(more) <= likely_error(seen.tolist())
    assert 0.88 < held / 400 < 0.97


@pytest.mark.parametrize(
    ("errors", "likely"),
    [([0.1], 0.1), ([0.1, 0.1], 0.1), ([0.0] * 4, 0.0), ([0.1, np.inf], np.inf)],
)
def test_the_likely_error_is_the_largest_where_nothing_else_is_known(
    errors: list[float], likely: float
) -> None:
    assert likely_error(errors) == pytest.approx(likely)


def test_errors_of_nothing_do_not_hide_one_that_is_large() -> None:
    assert likely_error([0.0] * 10 + [0.5]) >= 0.5
