"""What a bound is, and how a floating-point one becomes an integer that is certainly not above."""

from __future__ import annotations

import math
from dataclasses import dataclass

_RELATIVE_ERROR = 1e-9
"""More than what sums of 100,000 doubles can be wrong by, relative to the size of their terms."""
_ABSOLUTE_ERROR_NS = 1e-6


@dataclass(frozen=True)
class Bound:
    """No plan has a shorter makespan."""

    ns: int
    """0: nothing is proven."""
    source: str
    """The argument that proves it, e.g. "critical path"; "none" for 0."""


NO_BOUND = Bound(0, "none")


def rounded_bound(value_ns: float, size_ns: float) -> int:
    """Return the largest integer bound that a sum in floating point proves; makespans are integers.

    Parameters
    ----------
    size_ns
        Sum of the absolute values of the terms of the sum.
    """
    return max(0, math.ceil(value_ns - _RELATIVE_ERROR * size_ns - _ABSOLUTE_ERROR_NS))
