"""Samples -> medians, quantiles, rank correlation, confidence intervals and weighted lines.

What numpy and scipy have, under the few names that the package uses. scipy is imported where it is
called, as it takes longer to start than the rest of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` of the values lie, linear between two of them.

    Raises
    ------
    ValueError
        There is no value, or `part` is not in [0, 1].

    >>> quantile([1, 2, 3, 5], 0.5)
    2.5
    """
    if not len(values) or not 0 <= part <= 1:
        raise ValueError(f"quantile {part} of {len(values)} values: expected one in [0, 1], of any")
    return float(np.quantile(values, part))


def median(values: Sequence[float]) -> float:
    """Return the middle of the values, or the mean of the two in the middle; as `quantile`."""
    return quantile(values, 0.5)


def half_spread(values: Sequence[float]) -> float:
    """Return half of the distance between the quartiles: a spread that outliers do not move."""
    return (quantile(values, 0.75) - quantile(values, 0.25)) / 2


def counted_median(counts: Sequence[tuple[float, int]]) -> float | None:
    """Return the middle one of values that are given as (value, how often); None: there are none.

    >>> counted_median([(3.0, 1), (1.0, 2)])
    1.0
    """
    if not counts:
        return None
    values, repeats = zip(*counts, strict=True)
    return float(np.quantile(np.repeat(values, repeats), 0.5, method="inverted_cdf"))


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return the rank correlation of two equally long sequences; equal values share their rank.

    None if it is undefined: fewer than two values, or all values of one side equal.

    >>> spearman([1, 2, 3], [10, 20, 15])
    0.5
    """
    from scipy.stats import rankdata

    if len(left) != len(right):
        raise ValueError(f"{len(left)} and {len(right)} values cannot be compared by rank")
    if len(set(left)) < 2 or len(set(right)) < 2:
        return None
    return float(np.corrcoef(rankdata(left), rankdata(right))[0, 1])


def rank_correlation_p(rho: float, num_values: int) -> float:
    """Return how likely a rank correlation at least so far from 0 is among unrelated values.

    By Student's t with n - 2 degrees of freedom, t = rho sqrt((n - 2) / (1 - rho^2)), two-sided
    (Numerical Recipes, section 14.6.1).

    Raises
    ------
    ValueError
        Fewer than three values, or a correlation that is not inside (-1, 1).

    >>> f"{rank_correlation_p(0.98, 94):.1e}"
    '2.6e-66'
    """
    from scipy.special import stdtr

    if num_values < 3 or not -1 < rho < 1:
        raise ValueError(f"correlation {rho} of {num_values} values: expected one in (-1, 1), of 3")
    t = rho * ((num_values - 2) / (1 - rho * rho)) ** 0.5
    return float(2 * stdtr(num_values - 2, -abs(t)))


def upper_prediction_bound(
    values: Sequence[float] | FloatArray, num_more: int, confidence: float
) -> float:
    """Return an upper prediction bound for further values of a normal distribution.

    The bound for one further value is m + t s sqrt(1 + 1/n), with Student's t of n - 1 degrees of
    freedom (G. J. Hahn and W. Q. Meeker, Statistical Intervals, section 4.8). For several, their
    probabilities to exceed it add up (Bonferroni).

    Parameters
    ----------
    values
        At least two values of the distribution.
    num_more
        How many further values there are.
    confidence
        Least probability that all of them are at most the bound.

    Examples
    --------
    >>> round(upper_prediction_bound([1, 2, 3], 1, 0.95), 2)
    5.37
    """
    from scipy.special import stdtrit

    count = len(values)
    t = stdtrit(count - 1, 1 - (1 - confidence) / num_more)
    return float(np.mean(values) + t * np.std(values, ddof=1) * (1 + 1 / count) ** 0.5)


def median_interval(values: Sequence[int], confidence: float) -> tuple[int, int] | None:
    """Return the confidence interval of the median, or None if there are too few samples for it.

    From order statistics (H. A. David and H. N. Nagaraja, Order Statistics, section 7.1): the
    median lies between the r-th smallest and the r-th largest of n samples with probability
    1 - 2 P(Bin(n, 1/2) < r), however the samples are distributed.

    Parameters
    ----------
    values
        Samples, in any order.
    confidence
        Least probability that the interval holds the true median.

    Examples
    --------
    >>> median_interval([9, 2, 3, 4, 5, 6, 7, 8, 1], 0.95)
    (2, 8)
    """
    rank = interval_rank(len(values), confidence)
    ordered = sorted(values)
    return None if rank == 0 else (ordered[rank - 1], ordered[-rank])


def interval_rank(num_samples: int, confidence: float) -> int:
    """Return the largest r whose r-th smallest and largest samples enclose the median; 0: none.

    >>> [interval_rank(n, 0.95) for n in (5, 6, 9, 20, 100)]
    [0, 1, 2, 6, 40]
    """
    from scipy.special import bdtr

    below = bdtr(np.arange(num_samples // 2), num_samples, 0.5)
    return int(np.searchsorted(below, (1 - confidence) / 2, side="right"))


def line_fit(
    xs: Sequence[float] | FloatArray,
    ys: Sequence[float] | FloatArray,
    weights: Sequence[float] | FloatArray,
    intercept: float | None = None,
) -> tuple[float, float]:
    """Return (slope, intercept) of the line of least `sum(weight (slope x + intercept - y)^2)`.

    Parameters
    ----------
    xs
        At least two different ones; with a given intercept, one that is not 0. [num_points]
    ys
        In any unit, which is that of the intercept. [num_points]
    weights
        Each > 0. [num_points]
    intercept
        Where the line begins; None: that is fitted too.

    Examples
    --------
    >>> line_fit([0, 1, 3], [5, 7, 11], [1, 1, 2])
    (2.0, 5.0)
    >>> line_fit([1, 2], [3, 6], [1, 1], intercept=0.0)
    (3.0, 0.0)
    """
    x, y, weight = (np.asarray(values, dtype=np.float64) for values in (xs, ys, weights))
    if intercept is not None:
        return float((weight * x * (y - intercept)).sum() / (weight * x * x).sum()), intercept
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    away = weight * (x - mean_x)
    slope = float((away * (y - mean_y)).sum() / (away * (x - mean_x)).sum())
    return slope, float(mean_y - slope * mean_x)
