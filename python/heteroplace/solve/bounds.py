"""Lower bounds on the makespan, valid for every plan. Memory and transfers are ignored.

Critical path: each task on its fastest device. Load: for any weights w >= 0 of the units with sum
1, a run on device d takes w_d = sum of its units' weights times its run time out of every
nanosecond, so makespan >= sum over tasks of min over d of w_d * run. This is the dual of the
linear programme that spreads tasks over devices; the best weights are found by multiplicative
updates, and the bound is then computed in integers, so it is exact for whatever weights came out.
Windows: tasks that all start after a head h and are all followed by a tail t need h + load + t
(the energetic form of DiviML IV-E with modules replaced by thresholds).
"""

from __future__ import annotations

import numpy as np

from heteroplace.native.schedule import IMPOSSIBLE, IntArray, NativeProblem
from heteroplace.solve.base import Problem

_ROUNDS = 300
"""Steps of the search for unit weights."""
_SCALE = 1 << 20
"""Denominator of the integer unit weights."""
_WINDOW_STEPS = 8
"""Thresholds tried for heads and for tails."""


def lower_bound(problem: Problem) -> int:
    """Return the largest of all bounds in ns; 0 for an empty graph or where a task has no device.

    Complexity: O(num_tasks * num_devices * rounds), vectorised.
    """
    native = problem.native
    if not problem.graph.tasks or (native.run_ns == IMPOSSIBLE).all(axis=1).any():
        return 0
    head, tail = _heads_and_tails(problem)
    fastest = _fastest(native)
    path = int((head + fastest + tail).max())
    return max(path, _window_bound(native, head, tail))


def _fastest(native: NativeProblem) -> IntArray:
    run = np.where(native.run_ns == IMPOSSIBLE, np.iinfo(np.int64).max, native.run_ns)
    fastest: IntArray = run.min(axis=1, initial=np.iinfo(np.int64).max)
    return fastest


def _heads_and_tails(problem: Problem) -> tuple[IntArray, IntArray]:
    """Least time before the start and after the finish of each task."""
    fastest = _fastest(problem.native)
    count = len(problem.graph.tasks)
    head = np.zeros(count, dtype=np.int64)
    tail = np.zeros(count, dtype=np.int64)
    for task, before in enumerate(problem.graph.predecessors):
        for other in before:
            head[task] = max(head[task], head[other] + fastest[other])
    for task in range(count - 1, -1, -1):
        for other in problem.graph.predecessors[task]:
            tail[other] = max(tail[other], tail[task] + fastest[task])
    return head, tail


def _device_weights(native: NativeProblem, unit_weights: IntArray) -> IntArray:
    return np.array(
        [sum(int(unit_weights[unit]) for unit in units) for units in native.cluster.unit_ids],
        dtype=np.int64,
    )


def _unit_weights(native: NativeProblem) -> IntArray:
    """Integer weights of the units that make the load bound large; they sum to > 0."""
    units = len(native.cluster.units)
    uses = np.zeros((len(native.cluster.devices), units))
    for device, ids in enumerate(native.cluster.unit_ids):
        uses[device, list(ids)] = 1.0
    run = np.where(native.run_ns == IMPOSSIBLE, np.inf, native.run_ns.astype(np.float64))
    weights = np.full(units, 1.0 / units)
    best, best_weights = -1.0, weights
    rows = np.arange(len(run))
    for step in range(_ROUNDS):
        prices = run * np.maximum(uses @ weights, 1e-12)
        choice = prices.argmin(axis=1)
        value = float(prices[rows, choice].sum())
        if value > best:
            best, best_weights = value, weights
        load = np.zeros(len(uses))
        np.add.at(load, choice, run[rows, choice])
        slope = uses.T @ load
        if slope.max() == 0:
            break
        weights = weights * np.exp(slope / slope.max() * 0.5 / np.sqrt(step + 1.0))
        weights = weights / weights.sum()
    scaled: IntArray = np.maximum(1, np.rint(best_weights * _SCALE)).astype(np.int64)
    return scaled


def _load(native: NativeProblem, tasks: IntArray, unit_weights: IntArray) -> int:
    """Load bound of some tasks for the given weights, in exact integers."""
    run = native.run_ns[tasks].astype(object)
    run[native.run_ns[tasks] == IMPOSSIBLE] = 1 << 100
    weights = _device_weights(native, unit_weights).astype(object)
    total = int((run * weights).min(axis=1).sum()) if len(tasks) else 0
    return -(-total // int(unit_weights.sum()))


def _window_bound(native: NativeProblem, head: IntArray, tail: IntArray) -> int:
    weights = _unit_weights(native)
    best = 0
    for after in _thresholds(head):
        for before in _thresholds(tail):
            tasks = np.flatnonzero((head >= after) & (tail >= before))
            if len(tasks):
                best = max(best, after + before + _load(native, tasks, weights))
    return best


def _thresholds(times: IntArray) -> list[int]:
    """A few of the values, from the least to the largest."""
    values = np.unique(times)
    picks = np.linspace(0, len(values) - 1, min(_WINDOW_STEPS, len(values))).astype(int)
    return [int(values[pick]) for pick in picks]
