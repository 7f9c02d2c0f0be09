"""How good predictions are: worked examples, ties, edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.report.accuracy import (
    error_ratios,
    error_summary,
    top_k_recall,
    top_k_regret,
    weighted_error,
)
from tests.strategies import exact_cases

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


@exact_cases(50)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 14))
def test_perfect_prediction_loses_nothing(values: list[int], k: int) -> None:
    assert top_k_regret(values, values, k) == 0
    assert top_k_recall(values, values, k) == 1
