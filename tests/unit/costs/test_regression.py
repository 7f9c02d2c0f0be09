"""regression: lines in the batch size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.costs.prediction.regression import CONSTANT, LINEAR, NOISE_RATIO, fit_batches
from heteroplace.errors import CostMismatchError
from tests.strategies import exact_cases

SIZES = st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True)


def test_memory_of_the_worked_instance() -> None:
    """Celeritas' regression: 110, 190, 270 at batch 8, 16, 24."""
    fit = fit_batches([8, 16, 24], [110, 190, 270], kind="memory")
    assert fit.slope == pytest.approx(10)
    assert fit.intercept == pytest.approx(30)
    assert fit.predict(128) == pytest.approx(1310)
    assert fit.residual_ratio == pytest.approx(0)


@exact_cases(50)
@given(SIZES, st.integers(1, 10**9), st.integers(0, 10**9))
def test_a_line_is_found_again(sizes: list[int], slope: int, intercept: int) -> None:
    values = [slope * size + intercept for size in sizes]
    for kind in ("memory", "time"):
        fit = fit_batches(sizes, values, kind)
        assert fit.predict(100) == pytest.approx(100 * slope + intercept, rel=1e-6)


@pytest.mark.costly
@given(SIZES, st.data())
def test_times_never_fall_with_the_batch(sizes: list[int], data: st.DataObject) -> None:
    values = [data.draw(st.integers(0, 10**9)) for _ in sizes]
    fit = fit_batches(sizes, values, "time")
    assert fit.slope >= 0 and fit.intercept >= 0
    assert fit.predict(1000) >= fit.predict(100) >= max(values)


def test_time_that_falls_is_constant_and_floored_at_the_largest() -> None:
    fit = fit_batches([1, 2, 4], [120, 100, 90], "time")
    assert fit.form == CONSTANT
    assert fit.predict(16) == 120


def test_time_without_a_trend_is_constant() -> None:
    assert fit_batches([1, 2, 4, 8], [100, 101, 99, 101], "time").form == CONSTANT
    assert fit_batches([1, 2, 4, 8], [100, 150, 250, 450], "time").form == LINEAR


def test_smallest_batch_with_other_code_is_left_out() -> None:
    """A kernel of one item is compiled to other code: 60 at 1, then 100 for each item."""
    fit = fit_batches([1, 2, 4], [60, 200, 400], "time")
    assert fit.batches == (2, 4)
    assert fit.predict(16) == pytest.approx(1600)


def test_noise_does_not_become_an_intercept() -> None:
    """4 % too much at batch 2: a line through the points would find 13 % too little at 16."""
    values = [208, 400]
    assert fit_batches([2, 4], values).predict(16) < 1560
    assert fit_batches([2, 4], values, likely_intercept=1).predict(16) == pytest.approx(
        1630, rel=0.01
    )


def test_weights_that_take_long_are_an_intercept() -> None:
    fit = fit_batches([2, 4], [1020, 1040], likely_intercept=1000)
    assert fit.predict(16) == pytest.approx(1160, rel=0.02)


def test_times_weigh_by_their_size() -> None:
    """With absolute residuals the noise of the largest batch would decide about the smallest."""
    fit = fit_batches([1, 2, 4, 100], [10, 20, 40, 1100], "time")
    assert fit.predict(4) == pytest.approx(40, rel=0.1)


def test_error_grows_with_the_distance() -> None:
    fit = fit_batches([1, 2, 4], [100, 205, 390], "time")
    assert 0 < fit.error_ratio(4) <= fit.error_ratio(16) <= fit.error_ratio(64)
    assert fit_batches([8, 16, 24], [110, 190, 270], "memory").error_ratio(128) == pytest.approx(0)


def test_line_through_two_points_is_not_without_error() -> None:
    assert fit_batches([1, 2], [100, 200], "time").error_ratio(16) >= NOISE_RATIO


@pytest.mark.parametrize(
    ("sizes", "values", "kind", "words"),
    [
        ([1], [10], "time", "two or more"),
        ([2, 2], [10, 10], "time", "different"),
        ([0, 2], [10, 10], "time", "> 0"),
        ([1, 2], [10], "memory", "each size"),
        ([1, 2], [10, -1], "memory", ">= 0"),
        ([1, 2], [10, 20], "power", "memory, time"),
    ],
)
def test_wrong_samples_are_refused(
    sizes: list[int], values: list[float], kind: str, words: str
) -> None:
    with pytest.raises(CostMismatchError, match=words):
        fit_batches(sizes, values, kind)
