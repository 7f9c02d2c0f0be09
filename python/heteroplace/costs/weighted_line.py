"""Weighted points -> the best line: the one of least `sum(w (slope x + intercept - y)^2)`."""

from __future__ import annotations

from collections.abc import Sequence


def weighted_line(
    xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    """Return (slope, intercept); at least two different x, and weights > 0.

    >>> weighted_line([0, 1, 3], [5, 7, 11], [1, 1, 2])
    (2.0, 5.0)
    """
    total = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    variance = covariance = 0.0
    for weight, x, y in zip(weights, xs, ys, strict=True):
        variance += weight * (x - mean_x) ** 2
        covariance += weight * (x - mean_x) * (y - mean_y)
    slope = covariance / variance
    return slope, mean_y - slope * mean_x


def slope_through_origin(
    xs: Sequence[float], ys: Sequence[float], weights: Sequence[float]
) -> float:
    """Return the slope of the best line of intercept 0; some x is not 0.

    >>> slope_through_origin([1, 2], [3, 6], [1, 1])
    3.0
    """
    products = sum(w * x * y for w, x, y in zip(weights, xs, ys, strict=True))
    return products / sum(w * x * x for w, x in zip(weights, xs, strict=True))
