"""Steady-state throughput in the core: priced relaxation, knapsacks, splits, local search.

With many items under way at once and no batches, the time per item is the largest busy time per
item of any resource: units of devices, and what copies occupy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.native.core_arrays import IntArray
from heteroplace.native.core_problem import NativeProblem

FloatArray = npt.NDArray[np.float64]

_MAX_WORK = 5_000_000
"""Table entries that one evaluation of a relaxation reads: some ten milliseconds."""
_MAX_STATES = 100_000
"""Of a knapsack: what an evaluation holds with 80 buckets is 64 MB."""


class Relaxation:
    """Least priced cost over all placements; see `steady_state/relaxation.h`. Not thread-safe."""

    def __init__(self, problem: NativeProblem) -> None:
        """Plan the eliminations of the variables, once for all prices.

        Raises
        ------
        SolverLimitError
            Tasks, sizes and devices are so many that the tables would take gigabytes.
        """
        self._core = _core.Relaxation(problem, _MAX_WORK)
        self.num_units = len(problem.cluster.units)
        self.num_resources = len(problem.cluster.resources)
        self.is_exact: bool = self._core.is_exact
        """Minima are exact; else variables were split and values may be lower."""
        self.num_eliminations: int = self._core.num_eliminations
        """Distinct steps: the work of one evaluation grows with them, not with the graph."""

    def evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the least cost and, per resource and memory, what its minimiser uses.

        Parameters
        ----------
        prices
            [num_resources + num_memories], >= 0: per ns, then per byte.
        """
        return self._core.evaluate(np.ascontiguousarray(prices))

    def placement(self) -> IntArray:
        """Return the device of each task in the minimiser of the latest evaluation."""
        return self._core.placement()


@dataclass(frozen=True)
class SubsetProfits:
    """What one device can hold at most."""

    most: FloatArray
    """[count + 1], the most profit within loads of 0, 1, ... buckets, or a bit more; rises."""
    is_chosen: IntArray
    """[num_variables], 0 or 1: the subset behind the value that was asked for."""


class SubsetKnapsack:
    """Knapsacks over subsets of the tasks; see `steady_state/subset_knapsack.h`. Not thread-safe.

    A variable is a task or a group of tasks.
    """

    def __init__(self, problem: NativeProblem, max_states: int = _MAX_STATES) -> None:
        """Order the variables, once for all profits.

        Parameters
        ----------
        max_states
            What may be told apart about subsets, over all steps; copies are left out beyond.
        """
        self._core = _core.SubsetKnapsack(problem, max_states)
        self.device_class: IntArray = self._core.device_classes()
        """[num_devices]: equal for devices that are equally fast and have equal links."""
        self.variable: IntArray = self._core.variables()
        """[num_tasks]."""
        self.num_states: int = self._core.num_states
        """An evaluation reads about twice so many rows of buckets."""
        self.has_copies: bool = self._core.has_copies
        """Copies count as load of some device."""
        self.is_exact: bool = self._core.is_exact
        """All tensors are counted; else some copies were left out and values may be higher."""

    def run_ns(self, device_class: int) -> IntArray:
        """Return the run time of each variable [num_variables]; IMPOSSIBLE: not allowed.

        Raises
        ------
        GraphError
            No device has this class.
        """
        return self._core.run_ns(device_class)

    def evaluate(
        self,
        device_class: int,
        profit: FloatArray,
        *,
        width_ns: int,
        count: int,
        price_per_ns: float,
        at: int,
    ) -> SubsetProfits:
        """Return the most profit of a subset within each load up to `count` buckets.

        Parameters
        ----------
        profit
            [num_variables].
        width_ns, count
            Of the buckets, >= 1.
        price_per_ns
            >= 0, of what a load is above a whole bucket, and of spare time.
        at
            The load in buckets whose subset is asked for.
        """
        most, is_chosen = self._core.evaluate(
            device_class,
            np.ascontiguousarray(profit, dtype=np.float64),
            width_ns=width_ns,
            count=count,
            price_per_ns=price_per_ns,
            at=at,
        )
        return SubsetProfits(most, is_chosen)


@dataclass(frozen=True)
class Improvement:
    """What the local search found."""

    placement: IntArray
    """Device of each task."""
    item_ns: int
    """Its time per item."""
    violation: int
    """0: it fits. Else bytes over capacity plus copies without a route."""
    num_moves: int
    was_interrupted: bool
    """Ctrl-C, or the caller's `progress`, ended it."""


def improve_placements(
    problem: NativeProblem,
    initial: Sequence[IntArray],
    patterns: Sequence[IntArray] = (),
    *,
    max_moves: int | None,
    time_limit_s: float,
    seed: int,
    threads: int,
    bound_ns: int = 0,
    progress: Callable[[int, int], bool] | None = None,
) -> Improvement:
    """Improve the best of some initial solutions, at least one; see `steady_state/improve.h`.

    Parameters
    ----------
    patterns
        Other placements that parts may be copied from.
    max_moves
        Deterministic budget, whatever the number of threads; None: only the time limit.
    progress
        Called about 20 times a second with (moves, best time per item in ns or -1 while none
        fits); True ends the search.
    """
    placement, item_ns, violation, moves, was_interrupted = _core.improve_placements(
        problem,
        [np.ascontiguousarray(solution, dtype=np.int64) for solution in initial],
        [np.ascontiguousarray(pattern, dtype=np.int64) for pattern in patterns],
        max_moves=-1 if max_moves is None else max_moves,
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads,
        bound_ns=bound_ns,
        progress=progress,
    )
    return Improvement(placement, item_ns, violation, moves, was_interrupted)


@dataclass(frozen=True)
class IdealSplit:
    """The best split of a graph into stages, one for each device."""

    placement: IntArray | None
    """Device of each task; None: there are too many ideals or stages, or none fits."""
    load_ns: int
    """Its largest load as stages are priced, where there is one."""
    num_ideals: int
    """Sets of tasks that hold all their predecessors; 0: too many, or too many kinds of devices."""


def ideal_split(problem: NativeProblem, max_ideals: int, max_stages: int) -> IdealSplit:
    """Return the best split by dynamic programming over ideals; see `steady_state/ideals.h`.

    Parameters
    ----------
    max_stages
        Differences of ideals that are looked at: about a million a second.
    """
    placement, load_ns, num_ideals = _core.ideal_split(problem, max_ideals, max_stages)
    return IdealSplit(placement if len(placement) else None, load_ns, num_ideals)


def contiguous_splits(problem: NativeProblem, max_orders: int = 24) -> list[IntArray]:
    """Return splits of the order of tasks over the devices, one per order of devices, best first.

    Bisection over the largest run time of a device, for at most `max_orders` orders. Transfers are
    not counted while splitting, so some may overflow a memory; none holds all tasks: empty.
    """
    return _core.contiguous_splits(problem, max_orders)
