"""Two lists of outputs -> their largest difference, and whether that is rounding.

Tolerances are relative to the largest absolute value of an output, since errors of sums are:

    float32, float64   1e-4: ops are reordered, fused and approximated (exp, tanh)
    float16            5e-3: both add up in float32, and round what they store; ten roundings by
                       half a unit of the last place, 2^-11, all in one direction
    bfloat16           2e-2: likewise five, of 2^-9 and the next op's own
    quantised          2e-2: a value between two steps is rounded to either; one step of an int8
                       that uses its whole range is 1/127. Such values are few, so the mean
                       difference may be an eighth of that: a step everywhere is a fault
    integers, bool     equal; by one step in a quantised network

They are narrow, since what is beyond them is not wrong yet: then the nodes are looked at one by one
(`nodes.py`). A kernel that is off by 1 % is found in float32 and float16, one that is off by less
than its rounding in no type: about 2 % in bfloat16, a step in int8.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-4
HALF_TOLERANCES = {"float16": 5e-3, "bfloat16": 2e-2}
QUANTISED_TOLERANCE = 2e-2
QUANTISED_MEAN_RATIO = 1 / 8

_MIN_OF_MEAN = 64
"""Elements of an output whose mean difference says something."""
_QUANTISED_OPS = ("quantizelinear", "quantizelstm", "qlinear", "integer")


@dataclass(frozen=True)
class Tolerance:
    """What may differ."""

    relative: float
    """Of floating-point outputs, by the largest value of the output."""
    steps: int = 0
    """Of integer outputs."""
    mean_ratio: float = 1.0
    """How much of both the mean difference over an output may be."""


@dataclass(frozen=True)
class Difference:
    """How far some arrays are from their references."""

    absolute: float
    """Largest difference of two values; infinite if a shape differs, or one value is NaN."""
    relative: float
    """Largest difference in an array by the largest absolute value of its reference."""
    is_within: bool
    """No array differs by more than the tolerance."""
    mean: float = 0.0
    """Largest mean difference in an array by the largest absolute value of its reference."""


def choose_tolerance(dtypes: Collection[str], op_types: Iterable[str]) -> Tolerance:
    """Return the tolerance for a network.

    Parameters
    ----------
    dtypes
        Types of the values that the compiled network computes.
    op_types
        Of the ONNX model.
    """
    is_quantised = any(part in op.lower() for op in op_types for part in _QUANTISED_OPS)
    relative = max(HALF_TOLERANCES.get(dtype, TOLERANCE) for dtype in (*dtypes, "float32"))
    if not is_quantised:
        return Tolerance(relative)
    return Tolerance(max(relative, QUANTISED_TOLERANCE), 1, QUANTISED_MEAN_RATIO)


def compare(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: Tolerance
) -> Difference:
    """Compare arrays one by one; a NaN equals a NaN."""
    absolute, relative, mean = 0.0, 0.0, 0.0
    is_within = len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=False):
        difference = largest_difference(ours, theirs)
        largest = _largest(theirs)
        ratio = difference / largest if largest else difference
        absolute, relative = max(absolute, difference), max(relative, ratio)
        mean = max(mean, _mean_gap(ours, theirs) / (largest or 1.0))
        is_float = theirs.dtype.kind == "f"
        allowed = tolerance.relative * (largest or 1.0) if is_float else tolerance.steps
        is_within &= difference <= allowed
        if is_within and tolerance.mean_ratio < 1 and theirs.size >= _MIN_OF_MEAN:
            is_within &= _mean_gap(ours, theirs) <= allowed * tolerance.mean_ratio
    return Difference(absolute, relative, is_within, mean)


def furthest_off(
    actual: Mapping[int, Sequence[np.ndarray]],
    expected: Mapping[int, Sequence[np.ndarray]],
    tolerance: Tolerance,
) -> tuple[Difference, int]:
    """Compare the outputs of several items; return what stands for all, and of which item it is.

    One that is not within the tolerance goes first: it may be off by less of its largest value than
    another one, where integers or a mean difference are what is wrong.
    """
    differences = [(compare(actual[item], expected[item], tolerance), item) for item in expected]
    return max(differences, key=lambda each: (not each[0].is_within, each[0].relative))


def largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference of two values; infinite where only one is NaN."""
    if actual.shape != expected.shape or (actual.dtype.kind == "f") != (expected.dtype.kind == "f"):
        return float("inf")
    if not expected.size:
        return 0.0
    return float(_gaps(actual, expected).max())


def _mean_gap(actual: np.ndarray, expected: np.ndarray) -> float:
    """The mean absolute difference; infinite if the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float(_gaps(actual, expected).mean()) if expected.size else 0.0


def _gaps(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The absolute differences of two arrays of one shape and kind; infinite where one is NaN."""
    # Numpy's scalars are no arrays.
    actual, expected = np.atleast_1d(actual), np.atleast_1d(expected)
    # float64 holds every value of the types that networks compute in, but int64 beyond 2**53.
    equal = actual == expected
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    gap[equal] = 0.0
    if expected.dtype.kind == "f":
        are_nan = np.isnan(actual.astype(np.float64)), np.isnan(expected.astype(np.float64))
        gap[are_nan[0] & are_nan[1]] = 0.0
        gap[are_nan[0] ^ are_nan[1]] = np.inf
    else:
        gap[~equal] = np.maximum(gap[~equal], 1.0)
    gaps: np.ndarray = gap
    return gaps


def _largest(array: np.ndarray) -> float:
    """The largest finite absolute value; 0: there is none."""
    if not array.size:
        return 0.0
    values = np.abs(array.astype(np.float64))
    return float(np.max(values, where=np.isfinite(values), initial=0.0))
