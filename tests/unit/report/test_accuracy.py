"""How good predictions are: worked examples, ties, edges."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.report.accuracy import (
    error_ratios,
    error_summary,
    quantile,
    spearman,
    top_k_recall,
    top_k_regret,
    weighted_error,
)

# Six plans, as throughputs: the best by prediction is the fourth best in truth.
SIMULATED, REAL = (9, 8, 7, 6, 5, 4), (6, 9, 7, 5, 8, 4)


@pytest.mark.parametrize(("k", "regret"), [(1, 1 / 3), (2, 0), (6, 0), (9, 0)])
def test_regret_of_the_worked_example(k: int, regret: float) -> None:
    assert top_k_regret(SIMULATED, REAL, k) == pytest.approx(regret)


@pytest.mark.parametrize(("k", "recall"), [(1, 0), (2, 1 / 2), (3, 2 / 3), (6, 1), (9, 1)])
def test_recall_of_the_worked_example(k: int, recall: float) -> None:
    assert top_k_recall(SIMULATED, REAL, k) == pytest.approx(recall)


def test_times_are_judged_by_their_reciprocals() -> None:
    times = [[1 / value for value in side] for side in (SIMULATED, REAL)]
    throughputs = [[1 / value for value in side] for side in times]
    assert top_k_regret(*throughputs, 1) == pytest.approx(1 / 3)
    assert top_k_recall(*throughputs, 3) == pytest.approx(2 / 3)


def test_equal_predictions_are_taken_in_the_order_given() -> None:
    assert top_k_regret([1, 1], [4, 8], 1) == 0.5
    assert top_k_regret([1, 1], [8, 4], 1) == 0


@pytest.mark.parametrize("measure", [top_k_regret, top_k_recall])
@pytest.mark.parametrize(("sides", "k"), [(([], []), 1), (([1], [1]), 0), (([1], [1, 2]), 1)])
def test_no_choice_is_refused(measure, sides, k) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=f"best {k} of"):
        measure(*sides, k)


def test_rank_correlation_of_the_worked_examples() -> None:
    assert spearman([10, 20, 30, 40, 50], [1, 3, 2, 5, 4]) == pytest.approx(0.8)
    assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.948683, abs=5e-7)


def test_errors_are_relative_to_what_was_measured() -> None:
    assert error_ratios([5, 30], [10, 20]) == [-0.5, 0.5]
    with pytest.raises(ValueError, match="a measured value is 0: expected > 0"):
        error_ratios([1], [0])


def test_summary_has_size_and_sign() -> None:
    summary = error_summary([90, 95, 100, 120], [100, 100, 100, 100])
    assert summary.count == 4
    assert summary.median_ratio == pytest.approx(0.075)
    assert summary.p90_ratio == pytest.approx(0.17)
    assert summary.bias_ratio == pytest.approx(-0.025)


def test_summary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="of 0 values"):
        error_summary([], [])


def test_long_values_weigh_more() -> None:
    assert weighted_error([0, 99], [1, 99]) == pytest.approx(0.01)
    assert weighted_error([], []) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_is_that_of_numpy(values: list[float], part: float) -> None:
    assert quantile(values, part) == pytest.approx(float(np.quantile(values, part)), abs=1e-6)
    assert quantile(values, 0.5) == pytest.approx(statistics.median(values), abs=1e-6)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 14))
def test_perfect_prediction_loses_nothing(values: list[int], k: int) -> None:
    assert top_k_regret(values, values, k) == 0
    assert top_k_recall(values, values, k) == 1


def test_ties_share_their_rank():
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_constant_side_has_no_correlation():
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([], []) is None


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=20, unique=True), st.randoms())
def test_correlation_only_depends_on_order(values, random):
    cubes = [value**3 for value in values]
    assert spearman(values, cubes) == pytest.approx(1)
    assert spearman(values, [-cube for cube in cubes]) == pytest.approx(-1)
    other = list(values)
    random.shuffle(other)
    # Without ties the textbook formula holds.
    ranks = [{v: r for r, v in enumerate(sorted(values))}[v] for v in values]
    others = [{v: r for r, v in enumerate(sorted(values))}[v] for v in other]
    n = len(values)
    squares = sum((a - b) ** 2 for a, b in zip(ranks, others, strict=True))
    assert spearman(values, other) == pytest.approx(1 - 6 * squares / (n * (n * n - 1)))
