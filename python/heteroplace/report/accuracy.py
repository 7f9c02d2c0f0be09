"""Predictions beside what was measured -> how good they are, in a few numbers.

Spearman's rank correlation as in DistIR (section 5, "simulation accuracy"): a search needs the
right order of plans, absolute values matter less. Ours adds relative errors, because a user is
promised a time, and what the choice by prediction costs: the regret and the recall of the best k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.stats import median, quantile


@dataclass(frozen=True)
class ErrorSummary:
    """Relative errors (predicted - measured) / measured of some predictions."""

    count: int
    median_ratio: float
    """Median of the absolute errors."""
    p90_ratio: float
    """90th percentile of the absolute errors."""
    bias_ratio: float
    """Median of the signed errors; negative: predictions are too short."""


def error_ratios(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return (predicted - measured) / measured of each pair.

    Raises
    ------
    ValueError
        The sequences are not equally long, or a measured value is not > 0.

    >>> error_ratios([9, 22], [10, 20])
    [-0.1, 0.1]
    """
    for value in measured:
        if value <= 0:
            raise ValueError(f"a measured value is {value}: expected > 0")
    return [(p - m) / m for p, m in zip(predicted, measured, strict=True)]


def error_summary(predicted: Sequence[float], measured: Sequence[float]) -> ErrorSummary:
    """Return the errors of some predictions in one value.

    Raises
    ------
    ValueError
        As `error_ratios`, or there is nothing.

    >>> error_summary([9, 22, 10], [10, 20, 10]).median_ratio
    0.1
    """
    signed = error_ratios(predicted, measured)
    sizes = [abs(error) for error in signed]
    return ErrorSummary(len(signed), median(sizes), quantile(sizes, 0.9), median(signed))


def weighted_error(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return sum |predicted - measured| / sum measured: long values count more (Celeritas).

    None if the measured values sum to 0.

    >>> weighted_error([9, 22], [10, 20])
    0.1
    """
    total = sum(measured)
    if not total:
        return None
    return sum(abs(p - m) for p, m in zip(predicted, measured, strict=True)) / total


def top_k_regret(predicted: Sequence[float], measured: Sequence[float], k: int) -> float:
    """Return what is lost if only the k best by prediction are tried: 1 - best of them / best.

    Parameters
    ----------
    predicted, measured
        Throughputs (larger is better) of the same plans; of times give the reciprocals. Equal
        predictions are taken in the order given.
    k
        At least 1; more than there are plans means all.

    Raises
    ------
    ValueError
        No plan, unequal lengths, or k < 1.

    >>> top_k_regret([9, 8, 7], [6, 9, 7], 2)
    0.0
    """
    _check_plans(predicted, measured, k)
    return 1 - max(measured[index] for index in _best(predicted, k)) / max(measured)


def top_k_recall(predicted: Sequence[float], measured: Sequence[float], k: int) -> float:
    """Return which part of the k really best plans is among the k best by prediction.

    Parameters and errors as `top_k_regret`.

    >>> top_k_recall([9, 8, 7], [6, 9, 7], 2)
    0.5
    """
    _check_plans(predicted, measured, k)
    best = set(_best(measured, k))
    return len(best & set(_best(predicted, k))) / len(best)


def _best(values: Sequence[float], k: int) -> list[int]:
    return sorted(range(len(values)), key=lambda index: -values[index])[:k]


def _check_plans(predicted: Sequence[float], measured: Sequence[float], k: int) -> None:
    if not measured or len(predicted) != len(measured) or k < 1:
        raise ValueError(
            f"best {k} of {len(predicted)} predicted and {len(measured)} measured values: expected "
            f"k >= 1 and as many of both"
        )
