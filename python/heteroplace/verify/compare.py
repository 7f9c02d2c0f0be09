"""Two lists of outputs -> their largest difference, and whether that is rounding.

Tolerances are relative to the largest absolute value of an output, since errors of sums are:

    float32, float64   1e-4: ops are reordered, fused and approximated (exp, tanh)
    float16, bfloat16  5e-2: our kernels add in this type, onnxruntime in float32; a sum of K
                       products is off by up to about sqrt(K) 2^-11 of its largest part (float16),
                       which is 3 % at K = 4,608
    quantised          2e-2: a value between two steps is rounded to either; one step of an int8
                       that uses its whole range is 1/127
    integers, bool     equal; by one step in a quantised network
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-4
HALF_TOLERANCE = 5e-2
QUANTISED_TOLERANCE = 2e-2

_HALF_TYPES = frozenset({"float16", "bfloat16"})
_QUANTISED_OPS = ("quantizelinear", "qlinear", "integer")


@dataclass(frozen=True)
class Tolerance:
    """What may differ."""

    relative: float
    """Of floating-point outputs, by the largest value of the output."""
    steps: int = 0
    """Of integer outputs."""


@dataclass(frozen=True)
class Difference:
    """How far some arrays are from their references."""

    absolute: float
    """Largest difference of two values; infinite if a shape differs, or one value is NaN."""
    relative: float
    """Largest difference in an array by the largest absolute value of its reference."""
    is_within: bool
    """No array differs by more than the tolerance."""


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
    steps = 1 if is_quantised else 0
    if _HALF_TYPES & set(dtypes):
        return Tolerance(HALF_TOLERANCE, steps)
    return Tolerance(QUANTISED_TOLERANCE if is_quantised else TOLERANCE, steps)


def compare(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: Tolerance
) -> Difference:
    """Compare arrays one by one; a NaN equals a NaN."""
    absolute, relative = 0.0, 0.0
    is_within = len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=False):
        difference = largest_difference(ours, theirs)
        largest = _largest(theirs)
        ratio = difference / largest if largest else difference
        absolute, relative = max(absolute, difference), max(relative, ratio)
        is_float = theirs.dtype.kind == "f"
        is_within &= ratio <= tolerance.relative if is_float else difference <= tolerance.steps
    return Difference(absolute, relative, is_within)


def largest_difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference of two values; infinite where only one is NaN."""
    if actual.shape != expected.shape or (actual.dtype.kind == "f") != (expected.dtype.kind == "f"):
        return float("inf")
    if not expected.size:
        return 0.0
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
    return float(gap.max())


def _largest(array: np.ndarray) -> float:
    """The largest finite absolute value; 0: there is none."""
    if not array.size:
        return 0.0
    values = np.abs(array.astype(np.float64))
    return float(np.max(values, where=np.isfinite(values), initial=0.0))
