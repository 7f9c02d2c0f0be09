"""A bound on the time per item by the work of the tasks alone: quick, for any size.

Let p >= 0 be prices of the units of the devices, with sum 1. The time per item is at least the busy
time of each unit, so at least their mean with weights p; and that is at least the sum over tasks of
min over devices of (prices of the device's units) * (run time there). Copies and memory are left
out, which only lowers it. Prices rise where the cheapest devices would be busier than others
(exponentiated gradient; Kivinen and Warmuth 1997, 10.1006/inco.1996.2612). A task that takes long
everywhere is a bound, too.

`prices.py` has the same relaxation with copies and memory, whose tables are too large where
hundreds of devices meet many sizes of tensors, and whose first evaluation may take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.lp.linear_program import FloatArray
from heteroplace.solve.problem import Problem

MAX_EVALUATIONS = 40
_FIRST_STEP = 0.5
"""Of the logarithm of a price, for a unit that is as busy as the busiest."""
_BLOCK = 1 << 20
"""Pairs of task and device that are looked at at once: megabytes, not all of them."""
_ROUNDING = 1e-9
"""Above the relative error of the sums."""


def work_bound(problem: Problem, deadline: Deadline) -> int:
    """Return a time per item in ns that no placement is below.

    0 where a task can run nowhere. At least one evaluation, O(tasks * devices), and as many more
    as the deadline allows.
    """
    run_ns = problem.native.run_ns
    if not run_ns.size:
        return 0
    units = _units_of_devices(problem)
    price = np.full(units.shape[1], 1.0 / units.shape[1])
    least = 0.0
    for evaluation in range(1, MAX_EVALUATIONS + 1):
        value, busy, longest = _evaluate(run_ns, units, price)
        if not math.isfinite(longest):
            return 0
        least = max(least, value, longest)
        if deadline.is_over() or busy.max() <= 0:
            break
        price *= np.exp(_FIRST_STEP / math.sqrt(evaluation) * busy / busy.max())
        price /= price.sum()
    return math.ceil(least * (1 - _ROUNDING))


def _units_of_devices(problem: Problem) -> FloatArray:
    """1 where a device occupies a unit. [devices, units]"""
    cluster = problem.cluster
    table = np.zeros((len(cluster.devices), len(cluster.units)))
    for row, ids in zip(table, cluster.unit_ids, strict=True):
        row[list(ids)] = 1.0
    return table


def _evaluate(
    run_ns: IntArray, units: FloatArray, price: FloatArray
) -> tuple[float, FloatArray, float]:
    """The bound at some prices, what each unit is busy for, and the longest task's least time."""
    rate = units @ (price / (price.sum() * (1 + _ROUNDING)))
    value, longest, load = 0.0, 0.0, np.zeros(len(units))
    for times in _blocks(run_ns):
        chosen = (times * rate).argmin(axis=1)
        own = times[np.arange(len(times)), chosen]
        value += float((own * rate[chosen]).sum())
        longest = max(longest, float(times.min(axis=1).max()))
        load += np.bincount(chosen, weights=own, minlength=len(load))
    return value, load @ units, longest


def _blocks(run_ns: IntArray) -> Iterator[FloatArray]:
    """Run times of some tasks after the other, inf where a device cannot run one."""
    rows = max(1, _BLOCK // run_ns.shape[1])
    for first in range(0, len(run_ns), rows):
        block = run_ns[first : first + rows]
        yield np.where(block == IMPOSSIBLE, np.inf, block.astype(np.float64))
