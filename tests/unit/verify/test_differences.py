"""What counts as rounding, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from heteroplace.model.verification import Verification
from heteroplace.parts.onnx.verify.tolerances import (
    HALF_TOLERANCES,
    QUANTISED_MEAN_RATIO,
    QUANTISED_TOLERANCE,
    TOLERANCE,
    Tolerance,
    choose_tolerance,
    compare,
    furthest_off,
    largest_difference,
)

FLOAT = Tolerance(TOLERANCE)
QUANTISED = Tolerance(QUANTISED_TOLERANCE, 1, QUANTISED_MEAN_RATIO)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_differences_are_relative_to_the_largest_value_of_an_output() -> None:
    found = compare([floats(100.001, 0.001)], [floats(100.0, 0.0)], FLOAT)
    assert found.absolute == pytest.approx(1e-3, rel=1e-2)
    assert found.relative == pytest.approx(1e-5, rel=1e-2)
    assert found.is_within
    assert not compare([floats(0.0011, 0.001)], [floats(0.001, 0.0)], FLOAT).is_within


def test_one_output_out_of_several_is_enough() -> None:
    good, bad = floats(1.0), floats(1.001)
    assert not compare([good, bad], [good, good], FLOAT).is_within
    assert not compare([good], [good, good], FLOAT).is_within


def test_an_item_that_is_not_within_the_tolerance_stands_for_all() -> None:
    whole = np.array([100_000])
    expected = {item: [floats(1.0), whole] for item in (0, 3, 7)}
    actual = {0: [floats(1.00001), whole], 3: [floats(1.0), whole + 1], 7: [floats(1.00005), whole]}
    found, item = furthest_off(actual, expected, FLOAT)
    assert (found.is_within, item) == (False, 3)
    assert found.relative < compare(actual[7], expected[7], FLOAT).relative < TOLERANCE
    actual[3] = expected[3]
    found, item = furthest_off(actual, expected, FLOAT)
    assert (found.is_within, item) == (True, 7)


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        (np.nan, np.nan, 0.0),
        (0.0, np.nan, np.inf),
        (np.nan, 0.0, np.inf),
        (np.inf, np.inf, 0.0),
        (-np.inf, np.inf, np.inf),
        (np.inf, 1.0, np.inf),
    ],
)
def test_values_that_are_no_numbers(actual: float, expected: float, difference: float) -> None:
    assert largest_difference(floats(1, actual), floats(1, expected)) == difference


def test_another_shape_or_kind_is_infinitely_far() -> None:
    assert largest_difference(floats(1, 2), floats(1)) == np.inf
    assert largest_difference(np.array([1]), floats(1)) == np.inf


def test_no_values_do_not_differ() -> None:
    assert largest_difference(floats(), floats()) == 0.0


def test_integers_are_equal_but_by_a_step_in_quantised_networks() -> None:
    ours, theirs = np.array([3, 4], dtype=np.int8), np.array([3, 5], dtype=np.int8)
    assert not compare([ours], [theirs], FLOAT).is_within
    assert compare([ours], [theirs], Tolerance(QUANTISED_TOLERANCE, steps=1)).is_within
    assert not compare([ours + 2], [theirs], Tolerance(QUANTISED_TOLERANCE, steps=1)).is_within


def test_a_step_everywhere_is_no_rounding() -> None:
    theirs = np.arange(100, dtype=np.int8)
    here_and_there = theirs + (np.arange(100) % 10 == 0).astype(np.int8)
    assert compare([here_and_there], [theirs], QUANTISED).is_within
    assert not compare([theirs + np.int8(1)], [theirs], QUANTISED).is_within
    values = theirs.astype(np.float32)
    assert compare([here_and_there.astype(np.float32)], [values], QUANTISED).is_within
    assert not compare([values + np.float32(1)], [values], QUANTISED).is_within


def test_large_integers_that_floats_do_not_tell_apart_differ() -> None:
    assert largest_difference(np.array([2**53 + 1]), np.array([2**53])) == 1.0


@pytest.mark.parametrize(
    ("dtypes", "op_types", "expected"),
    [
        ({"float32"}, {"Conv"}, Tolerance(TOLERANCE)),
        ({"float32", "float16"}, {"Conv"}, Tolerance(HALF_TOLERANCES["float16"])),
        ({"bfloat16"}, (), Tolerance(HALF_TOLERANCES["bfloat16"])),
        ({"int8"}, {"QLinearConv"}, QUANTISED),
        ({"uint8"}, {"DequantizeLinear"}, QUANTISED),
        ({"uint8"}, {"DynamicQuantizeLSTM"}, QUANTISED),
        ({"uint8"}, {"Cast", "Conv"}, Tolerance(TOLERANCE)),
    ],
)
def test_tolerances(dtypes: set[str], op_types: set[str], expected: Tolerance) -> None:
    assert choose_tolerance(dtypes, op_types) == expected


def test_the_outcome_as_a_line() -> None:
    found = Verification("onnxruntime 1.22.1", 2e-6, 5e-7, 1e-4, "a note")
    assert found.text == (
        "verified: at most 2e-06 from onnxruntime 1.22.1, 5e-07 of the largest output "
        "(allowed 0.0001); a note"
    )
    assert Verification(note="no GPU").text == "not verified: no GPU"


def test_scalars_are_compared() -> None:
    one, two = np.array(1, np.uint8), np.array(2, np.uint8)
    assert largest_difference(one, one) == 0.0
    assert largest_difference(one, two) == 1.0
    assert largest_difference(np.array(np.nan), np.array(0.0)) == np.inf
