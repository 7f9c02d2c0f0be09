"""Statistics: worked examples, ties, edges."""

from __future__ import annotations

import random
import statistics
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.stats import (
    counted_median,
    half_spread,
    interval_rank,
    line_fit,
    median,
    median_interval,
    quantile,
    spearman,
)
from tests.strategies import exact_cases


def test_rank_correlation_of_the_worked_examples() -> None:
    assert spearman([10, 20, 30, 40, 50], [1, 3, 2, 5, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.948683, abs=5e-7)


@pytest.mark.costly
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_the_median_is_the_half_quantile(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values), abs=1e-6)


def test_quantile_of_nothing_or_outside_is_refused() -> None:
    for values, part in (([], 0.5), ([1.0], 1.1)):
        with pytest.raises(ValueError, match=f"quantile {part} of {len(values)} values"):
            quantile(values, part)


def test_half_spread_is_half_of_the_interquartile_range() -> None:
    assert half_spread([0, 1, 2, 3, 100]) == 1


def test_counted_values_weigh_as_often_as_they_are() -> None:
    assert counted_median([]) is None
    assert counted_median([(1.0, 2), (5.0, 3)]) == 5
    assert counted_median([(5.0, 2), (1.0, 2)]) == 1


def test_a_heavy_point_pulls_the_line() -> None:
    slope, intercept = line_fit([0, 1, 2], [0, 1, 5], [1, 1e12, 1e12])
    assert (slope, intercept) == (pytest.approx(4), pytest.approx(-3))
    assert line_fit([1, 2], [5, 9], [1, 1], intercept=1.0) == (pytest.approx(4), 1.0)


def test_ties_share_their_rank():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_constant_side_has_no_correlation():
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([], []) is None


@exact_cases(50)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20, unique=True), st.randoms())
def test_correlation_only_depends_on_order(values, stream):
    cubes = [value**3 for value in values]
    assert spearman(values, cubes) == pytest.approx(1)
    assert spearman(values, [-cube for cube in cubes]) == pytest.approx(-1)
    other = list(values)
    stream.shuffle(other)
    # Without ties the textbook formula holds.
    ranks = [{v: r for r, v in enumerate(sorted(values))}[v] for v in values]
    others = [{v: r for r, v in enumerate(sorted(values))}[v] for v in other]
    n = len(values)
    squares = sum((a - b) ** 2 for a, b in zip(ranks, others, strict=True))
    assert spearman(values, other) == pytest.approx(1 - 6 * squares / (n * (n * n - 1)))


@pytest.mark.costly(4)
@pytest.mark.parametrize("num_samples", [6, 7, 20, 101, 4000])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95])
def test_the_interval_has_the_confidence_and_none_narrower_has(
    num_samples: int, confidence: float
) -> None:
    def covers(rank: int) -> float:
        return 1 - 2 * sum(comb(num_samples, k) for k in range(rank)) / 2**num_samples

    rank = interval_rank(num_samples, confidence)
    assert covers(rank) >= confidence
    assert rank == num_samples // 2 or covers(rank + 1) < confidence


def test_too_few_samples_have_no_interval() -> None:
    assert median_interval([1, 2, 3, 4, 5], 0.95) is None
    assert median_interval([], 0.95) is None


def test_the_interval_holds_the_true_median_as_often_as_promised() -> None:
    stream = random.Random(5)
    hits = 0
    for _ in range(400):
        samples = sorted(round(1000 * stream.expovariate(1)) for _ in range(25))
        interval = median_interval(samples, 0.95)
        assert interval is not None
        hits += interval[0] <= 693 <= interval[1]
    assert hits >= 0.93 * 400
