"""Profits of tasks that the devices cannot hold within a time: a bound on the time per item.

A placement splits the tasks into one subset S_d for each device d, and device d is busy for the run
times of S_d and, where copies occupy it, for one copy of each tensor on the border of S_d. With
profits p >= 0 of the tasks, let P_d(T) be the most profit of a subset that takes d at most T. If

    sum over devices of P_d(T)  <  sum over tasks of p

then no placement has a time per item of T or less. P_d is `SubsetKnapsack` of the core. Profits
are the dual values of the programme that splits the tasks into such subsets (column generation by
device, as Savelsbergh 1997 for the generalised assignment problem); they are searched with
subgradients, averaged over the steps, with the step of Polyak 1969.

That is more than the prices of `prices.py` can say: a sixth of a placement of all tasks on one
device, which copies nothing, is as good there as a sixth of the tasks. Here a device takes a subset
whole, so the copies on its border are paid. Memories are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.parts.throughput.native.core_throughput import FloatArray, SubsetKnapsack
from heteroplace.solve.problem import Problem

SLACK = 1e-9
"""Relative error allowed for sums of profits."""
MAX_VARIABLES = 5_000
"""Tasks, groups counted once, up to which there is such a bound."""
_BUCKETS = 100, 400
"""First coarse ones, which are faster, then fine ones from the best profits on."""
_MAX_ENTRIES = 8_000_000
"""States times buckets."""
_AHEAD = 0.02
"""How far above the bound the time is for which profits are sought, as a part of the reference."""
_MAX_FAILURES = 60
"""Evaluations in a row without a better bound after which the search ends."""
_FAILURES_TO_NEAR = 20
"""After which it goes back to the best profits, seeks for half as far above them, in half steps."""
_MEMORY = 0.7
"""Part of the direction of the step before that is kept."""
_PRICE_PART = 0.25
"""Of the mean profit per ns, what a ns is worth that rounding takes off a load. As spare time is
given back at the same price, with the whole of it no subset would beat the empty one."""
_MIN_STEP = 0.002
"""Of the sum of all profits."""


@dataclass(frozen=True)
class SubsetBound:
    """The best bound found."""

    bound_ns: int
    """No placement has a smaller time per item; 0: nothing is known."""
    num_evaluations: int


def subset_bound(
    problem: Problem,
    reference_ns: int,
    max_evaluations: int,
    time_limit_s: float,
    should_stop: Callable[[int], bool] = lambda bound_ns: False,
) -> SubsetBound:
    """Search for profits with a large bound, up to `reference_ns`.

    The bound is 0 where copies occupy no device, as prices are as good there, and where the graph
    is too large. In a wide one copies are left out, which only lowers it.

    Parameters
    ----------
    reference_ns
        The time per item of a placement, or of the right size.
    should_stop
        Asked after each evaluation with the bound so far in ns.
    """
    deadline = time.perf_counter() + time_limit_s
    if not 0 < len(problem.graph.tasks) <= MAX_VARIABLES or reference_ns < 1:
        return SubsetBound(0, 0)
    knapsack = SubsetKnapsack(problem.native)
    if not knapsack.has_copies:
        return SubsetBound(0, 0)
    profit, best = _fastest_ns(knapsack), SubsetBound(0, 0)
    for buckets in _BUCKETS:
        count = max(1, min(buckets, reference_ns, _MAX_ENTRIES // knapsack.num_states - 1))
        search = _ProfitSearch(knapsack, profit, -(-reference_ns // count), count)
        more = search.run(max_evaluations - best.num_evaluations, deadline, should_stop)
        bound_ns, profit = max(best.bound_ns, more.bound_ns), search.profit
        best = SubsetBound(bound_ns, best.num_evaluations + more.num_evaluations)
    return best


def _fastest_ns(knapsack: SubsetKnapsack) -> FloatArray:
    """Run time of each variable where it is fastest."""
    classes = range(int(knapsack.device_class.max()) + 1)
    times = np.array([knapsack.run_ns(number) for number in classes])
    fastest: IntArray = np.where(times == IMPOSSIBLE, np.iinfo(np.int64).max, times).min(axis=0)
    return fastest.astype(np.float64)


class _ProfitSearch:
    """Profits with the sum 1, and the largest number of buckets that they rule out."""

    def __init__(
        self, knapsack: SubsetKnapsack, profit: FloatArray, width_ns: int, count: int
    ) -> None:
        self._knapsack = knapsack
        self.profit = profit
        """[num_variables], the best after `run`."""
        self._width_ns, self._count = width_ns, count
        self._members = np.bincount(knapsack.device_class)
        """[num_classes], devices of each."""
        spread = len(knapsack.device_class) * count * width_ns
        self._price = np.full(len(self._members), 1.0 / spread)
        """[num_classes], profit per ns."""
        self._best = -1
        """Buckets of the longest time that is ruled out."""

    def run(
        self, max_evaluations: int, deadline: float, should_stop: Callable[[int], bool]
    ) -> SubsetBound:
        """See `subset_bound`; `deadline` is a value of time.perf_counter()."""
        evaluations, failures, shrink = 0, 0, 1.0
        ahead = max(1, round(_AHEAD * self._count))
        direction = np.zeros_like(self.profit)
        best_profit = self.profit
        while evaluations < max_evaluations and failures < _MAX_FAILURES:
            total = float(self.profit.sum())
            if total <= 0 or time.perf_counter() >= deadline:
                break
            self.profit = self.profit / total
            at = min(self._count, self._best + ahead)
            most, taken = self._evaluate(at)
            evaluations += 1
            ruled_out = np.flatnonzero(most * (1 + SLACK) < self.profit.sum() * (1 - SLACK))
            reached = int(ruled_out[-1]) if len(ruled_out) else -1
            if reached > self._best:
                self._best, failures, best_profit = reached, 0, self.profit
            else:
                failures += 1
            if self._best >= self._count or should_stop(self._bound_ns()):
                break
            if reached >= at:
                continue
            if failures and failures % _FAILURES_TO_NEAR == 0:
                ahead, shrink = max(1, ahead // 2), shrink / 2
                self.profit, direction = best_profit, np.zeros_like(best_profit)
                continue
            direction = _MEMORY * direction + (1 - _MEMORY) * (1.0 - taken)
            length = float(direction @ direction)
            if length == 0:
                break
            step = shrink * max(float(most[at]) - 1.0, _MIN_STEP) / length
            self.profit = np.maximum(0.0, self.profit + step * direction)
        self.profit = best_profit
        return SubsetBound(self._bound_ns(), evaluations)

    def _bound_ns(self) -> int:
        return self._best * self._width_ns + 1 if self._best >= 0 else 0

    def _evaluate(self, at: int) -> tuple[FloatArray, IntArray]:
        """The most profit of all devices within each load, and how many devices take each variable
        in the subsets within `at`."""
        most = np.zeros(self._count + 1)
        taken = np.zeros(len(self.profit), dtype=np.int64)
        for number, members in enumerate(self._members.tolist()):
            evaluation = self._knapsack.evaluate(
                number,
                self.profit,
                width_ns=self._width_ns,
                count=self._count,
                price_per_ns=float(self._price[number]),
                at=at,
            )
            most += members * evaluation.most
            taken += members * evaluation.is_chosen
            # What a ns is worth on these devices, for the next evaluation.
            self._price[number] = (
                _PRICE_PART * float(evaluation.most[at]) / (max(1, at) * self._width_ns)
            )
        return most, taken
