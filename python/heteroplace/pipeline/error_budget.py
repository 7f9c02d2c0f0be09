"""Which tasks may lose accuracy, so that all outputs together stay within an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from heteroplace.stats import upper_prediction_bound

_NUM_MORE, _CONFIDENCE = 10, 0.9
"""How many further inputs stay within a likely error, and with which probability."""
_MAX_GROUPS = 48
"""Of neighbouring tasks, whose errors are measured alone."""
_MAX_ADDED_GROUPS = 3
"""Behind the first one that does not fit, which are tried one by one."""


def largest_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Return the largest difference of an output, by its largest absolute value; infinite where
    one of both is no number, or an integer differs.

    Examples
    --------
    >>> round(largest_error([np.float32([1, 2.02])], [np.float32([1, 2])]), 4)
    0.01
    """
    worst = 0.0
    for output, expected in zip(outputs, reference, strict=True):
        if np.array_equal(output, expected, equal_nan=expected.dtype.kind == "f"):
            continue
        gap = np.abs(output.astype(np.float64) - expected.astype(np.float64)).max()
        scale = np.abs(expected.astype(np.float64)).max()
        is_known = expected.dtype.kind == "f" and np.isfinite(gap) and scale > 0
        worst = max(worst, float(gap / scale) if is_known else np.inf)
    return worst


def likely_error(errors: Sequence[float]) -> float:
    """Return an error that ten further inputs probably stay within, given those of some inputs.

    It is never below the largest one. The logarithms of errors are taken to be normal.

    Examples
    --------
    >>> likely_error([0.0, 0.0]), likely_error([0.5, np.inf])
    (0.0, inf)
    >>> round(likely_error([0.008, 0.007, 0.009, 0.008]), 3)
    0.013
    """
    largest = max(errors)
    if largest == 0 or not np.isfinite(largest) or len(errors) < 2:
        return largest
    logarithms = np.log(np.maximum(errors, largest / 100))
    return max(largest, float(np.exp(upper_prediction_bound(logarithms, _NUM_MORE, _CONFIDENCE))))


def most_gain_within(
    gains: Mapping[int, int],
    error_of: Callable[[frozenset[int]], float],
    fits: Callable[[frozenset[int]], bool],
) -> frozenset[int]:
    """Return tasks that fit together, and that gain as much as possible.

    Rounding errors of different tasks are independent, so their squares add up. Tasks are taken in
    the order of squared error by gain, as in a knapsack.

    Parameters
    ----------
    gains
        Nanoseconds by task.
    error_of
        The error of a set of tasks, for a few inputs.
    fits
        Whether the error of a set of tasks is small enough.

    Examples
    --------
    >>> errors = {0: 0.3, 1: 0.1, 2: 0.4}
    >>> def error_of(tasks): return sum(errors[task] ** 2 for task in tasks) ** 0.5
    >>> chosen = most_gain_within({0: 10, 1: 1, 2: 30}, error_of, lambda t: error_of(t) < 0.45)
    >>> sorted(chosen)
    [1, 2]
    """
    tasks = sorted(gains)
    if fits(frozenset(tasks)):
        return frozenset(tasks)
    size = -(-len(tasks) // _MAX_GROUPS)
    groups = [frozenset(tasks[first : first + size]) for first in range(0, len(tasks), size)]

    def error_by_gain(group: frozenset[int]) -> float:
        return error_of(group) ** 2 / max(sum(gains[task] for task in group), 1)

    groups.sort(key=error_by_gain)
    fitting, too_many = 0, len(groups)
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if fits(frozenset().union(*groups[:middle])):
            fitting = middle
        else:
            too_many = middle
    chosen = frozenset[int]().union(*groups[:fitting])
    for group in groups[too_many : too_many + _MAX_ADDED_GROUPS]:
        if fits(chosen | group):
            chosen |= group
    return chosen
