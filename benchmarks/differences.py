"""Outputs of two programs -> how far they are from each other.

Infinitely far where one has a number and the other one none: Python's `max` would pass over a nan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.parts.onnx.verify.tolerances import Difference, Tolerance, compare

Outputs = Sequence[np.ndarray]


def largest_difference(found: Outputs, expected: Outputs) -> float:
    """Return the largest difference of two sets of outputs.

    >>> largest_difference([np.array([1.0, -4.0])], [np.array([1.0, -5.0])])
    1.0
    """
    return max(each.absolute for each in _differences(found, expected))


def relative_difference(found: Outputs, expected: Outputs) -> float:
    """Return the largest difference of two sets of outputs, each over its output's largest value.

    >>> relative_difference([np.array([1.0, -4.0])], [np.array([1.0, -5.0])])
    0.2
    """
    return max(each.relative for each in _differences(found, expected))


def _differences(found: Outputs, expected: Outputs) -> list[Difference]:
    pairs = zip(found, expected, strict=True)
    return [compare([one], [other], Tolerance(0.0)) for one, other in pairs]
