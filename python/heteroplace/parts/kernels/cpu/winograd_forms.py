"""Winograd's algorithm for filters of 3 x 3: how maps, filters and products are transformed.

Some neighbouring elements of a result, and what they see of a map, are a tile. The part of the map
and the filter are evaluated as polynomials at some points; what is multiplied there, element by
element, are the values of the result's polynomial, of which sums make the elements:

    result = A^T [(G filter G^T) * (B^T map B)] A

A tile of 2 x 2 takes 16 products in place of 36, one of 4 x 4 takes 36 in place of 144.

Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
(doi:10.1109/CVPR.2016.435); of the points Barabasz et al., "Error Analysis and Improving the
Accuracy of Winograd Convolution for DNNs" (doi:10.1145/3412380). Unlike there, those of 4 x 4 are
0, +-sqrt(1/2), +-sqrt(2), whose squares are exact: of all pairs that were tried they and 3/4, 4/3
were nearest to float64. On normal maps their error is about that of plain sums, on maps of very
different elements up to three times that; that of 0, +-1, +-2 is four times theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from tvm import tir

WINOGRAD_OP = "heteroplace_winograd"
"""Of a map [n, blocks, height, width, lanes] and filters at points; attributes `tile` and `padding`
(above, left, below, right)."""
FILTER = 3
"""Rows and columns of a filter."""
_LOW, _HIGH = sqrt(0.5), sqrt(2.0)

Values = Sequence[Any]
"""Expressions of vectors, one for each place along an axis."""


class Form(NamedTuple):
    """What tiles of one size take, along one axis; the other axis is the same."""

    tile: int
    """Elements of the result."""
    points: tuple[float, ...]
    """But for the one at infinity."""
    spread: Callable[[Values], Values]
    """Elements of a map -> their values at the points: B^T."""
    gathered: Callable[[Values], Values]
    """Products at the points -> elements of the result: A^T."""

    @property
    def seen(self) -> int:
        """Elements of a map that a tile sees, and points."""
        return self.tile + FILTER - 1

    def filters(self, filters: np.ndarray) -> np.ndarray:
        """Return filters [3, 3, ...] at the points, [seen, seen, ...], computed in float64."""
        rows = []
        for point in self.points:
            others = [point - other for other in self.points if other != point]
            rows.append(np.array([1, point, point * point]) / np.prod(others))
        matrix = np.array([*rows, [0, 0, 1]])
        wide = np.tensordot(matrix, filters.astype("float64"), 1)
        return np.ascontiguousarray(
            np.moveaxis(np.tensordot(matrix, wide, (1, 1)), 0, 1), dtype=filters.dtype
        )


def _spread_2(d: Values) -> Values:
    return d[2] - d[0], d[1] + d[2], d[2] - d[1], d[3] - d[1]


def _gathered_2(m: Values) -> Values:
    return m[0] + (m[1] + m[2]), (m[1] - m[2]) + m[3]


def _spread_4(d: Values) -> Values:
    low = d[4] - _number(2.0) * d[2], _number(_LOW) * (d[3] - _number(2.0) * d[1])
    high = d[4] - _number(0.5) * d[2], _number(_HIGH) * (d[3] - _number(0.5) * d[1])
    return (
        d[0] + (d[4] - _number(2.5) * d[2]),
        *(low[0] + low[1], low[0] - low[1], high[0] + high[1], high[0] - high[1]),
        d[1] + (d[5] - _number(2.5) * d[3]),
    )


def _gathered_4(m: Values) -> Values:
    low, high = (m[1] + m[2], m[1] - m[2]), (m[3] + m[4], m[3] - m[4])
    return (
        m[0] + (low[0] + high[0]),
        _number(_LOW) * low[1] + _number(_HIGH) * high[1],
        _number(0.5) * low[0] + _number(2.0) * high[0],
        _number(_LOW**3) * low[1] + _number(_HIGH**3) * high[1] + m[5],
    )


def _number(value: float) -> tir.PrimExpr:
    return tir.const(np.float32(value), "float32")


FORMS = {
    2: Form(2, (0.0, 1.0, -1.0), _spread_2, _gathered_2),
    4: Form(4, (0.0, _LOW, -_LOW, _HIGH, -_HIGH), _spread_4, _gathered_4),
}
"""By the rows and columns of a tile."""
