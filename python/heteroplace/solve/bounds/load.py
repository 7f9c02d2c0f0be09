"""Load: for any weights of the units, the work that must be done at least, in exact integers.

For weights w >= 0 of the units with sum 1, a run on device d takes w_d = sum of its units'
weights times its run time out of every nanosecond, so makespan >= sum over tasks of the least
w_d * run. This is the dual of the linear program that spreads tasks over devices. The weights are
found by multiplicative updates; the bound is computed in integers, so it holds for whatever weights
came out.
"""

from __future__ import annotations

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import NativeProblem

_ROUNDS = 300
"""Steps of the search for unit weights, for few tasks."""
_WORK = 3_000_000
"""(Task, device) pairs looked at in all steps together, for many."""
_LARGEST_SCALE = 1 << 20
"""Denominator of the integer unit weights."""
_MIN_SCALE = 1 << 14
"""With a smaller one weights are too coarse: numbers of any size are used instead."""
_LARGEST = 1 << 62


class Loads:
    """Load bounds of sets of tasks, every one of which has a device."""

    def __init__(self, native: NativeProblem, run_ns: IntArray | None = None) -> None:
        """Find the weights. O(num_tasks * num_devices * rounds), vectorised.

        Parameters
        ----------
        run_ns
            [num_tasks, num_devices], other run times; IMPOSSIBLE where a task cannot be. None:
            those of one item.
        """
        run = native.run_ns if run_ns is None else run_ns
        # Sums over all tasks of run time times weight must fit.
        largest = 2 * max(1, int(run.max(initial=0))) * max(1, len(run))
        scale = min(_LARGEST_SCALE, _LARGEST // largest)
        is_narrow = scale >= _MIN_SCALE
        weights = _unit_weights(native, run, scale if is_narrow else _LARGEST_SCALE)
        self._denominator = int(weights.sum())
        per_device = [int(weights[list(units)].sum()) for units in native.cluster.unit_ids]
        # Wide: Python's integers, which do not overflow.
        exact = run if is_narrow else run.astype(object)
        work = exact * np.array(per_device, dtype=exact.dtype)
        work[run == IMPOSSIBLE] = _LARGEST if is_narrow else 1 << 200
        self._least = work.min(axis=1)

    def bound_ns(self, tasks: IntArray | slice) -> int:
        """Return the bound for running the given tasks."""
        return -(-int(self._least[tasks].sum()) // self._denominator)


def _unit_weights(native: NativeProblem, run_ns: IntArray, scale: int) -> IntArray:
    """Integer weights of the units that make the load bound large; they sum to about `scale`."""
    units = len(native.cluster.units)
    uses = np.zeros((len(native.cluster.devices), units))
    for device, ids in enumerate(native.cluster.unit_ids):
        uses[device, list(ids)] = 1.0
    run = np.where(run_ns == IMPOSSIBLE, np.inf, run_ns.astype(np.float64))
    weights = np.full(units, 1.0 / units)
    best, best_weights = -1.0, weights
    rows = np.arange(len(run))
    for step in range(max(20, min(_ROUNDS, _WORK // max(1, run.size)))):
        prices = run * np.maximum(uses @ weights, 1e-12)
        choice = prices.argmin(axis=1)
        value = float(prices[rows, choice].sum())
        if value > best:
            best, best_weights = value, weights
        load = np.bincount(choice, weights=run[rows, choice], minlength=len(uses))
        slope = uses.T @ load
        if slope.max(initial=0.0) == 0:
            break
        weights = weights * np.exp(slope / slope.max() * 0.5 / np.sqrt(step + 1.0))
        weights = weights / weights.sum()
    scaled: IntArray = np.maximum(1, np.rint(best_weights * scale)).astype(np.int64)
    return scaled
