"""Of placements of nearly the least time per item, one with few changes of device.

A request that changes devices often meets others in front of each: n requests that go back and
forth between two equal devices at random keep these busy n / (n + 1) of the time, as in a closed
network of queues, while those of a plan of two contiguous stages do so with two. Costs are known to
some percent only, so what is within that counts as equal.

From each contiguous split tasks leave the busiest device, each time the one that gains most for
each change that it adds, until the time per item is near enough.

Source: F. Baskett et al., Open, closed, and mixed networks of queues with different classes of
customers, doi:10.1145/321879.321887.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_loads import placement_loads
from heteroplace.solve.problem import Problem

MAX_TRIALS = 2_000
"""Placements that are tried for one move; of larger graphs nothing is changed."""
_MAX_MOVES = 12
"""Moves from one split; each may add two changes of device for each tensor."""


def with_few_changes(
    problem: Problem,
    placement: IntArray,
    splits: Sequence[IntArray],
    limit_ns: int,
    is_over: Callable[[], bool] = lambda: False,
) -> IntArray | None:
    """Return a placement with fewer changes of device than `found`; None: there is none.

    Parameters
    ----------
    placement
        Device id of each task. [num_tasks]
    splits
        Placements from which to start.
    limit_ns
        Most time per item.
    is_over
        Whether the time is; it is asked before each move.
    """
    num_trials = len(placement) * len(problem.cluster.devices)
    if num_trials > MAX_TRIALS or any(group >= 0 for group in problem.native.task_group):
        return None
    balancing = _Balancing(problem, is_over)
    near = [balancing.balanced(split, limit_ns) for split in splits]
    fewest = min((one for one in near if one is not None), key=balancing.changes, default=None)
    if fewest is None or balancing.changes(fewest) >= balancing.changes(placement):
        return None
    return fewest


class _Balancing:
    """Moves of single tasks off the busiest device."""

    def __init__(self, problem: Problem, is_over: Callable[[], bool]) -> None:
        self._problem = problem
        self._is_over = is_over
        self._edges: IntArray = np.array(
            [
                (producer, task)
                for task, producers in enumerate(problem.graph.predecessors)
                for producer in producers
            ],
            dtype=np.int64,
        ).reshape(-1, 2)

    def changes(self, placement: IntArray) -> int:
        """Return how many tasks read what another device has made, counted for each producer."""
        return int(np.count_nonzero(placement[self._edges[:, 0]] != placement[self._edges[:, 1]]))

    def balanced(self, split: IntArray, limit_ns: int) -> IntArray | None:
        """Return a placement near `split` within the limit; None: too many moves would be made."""
        placement, item_ns = split, self._item_ns(split)
        for _ in range(_MAX_MOVES):
            if item_ns is None or item_ns <= limit_ns or self._is_over():
                break
            placement, item_ns = self._best_move(placement, item_ns)
        return placement if item_ns is not None and item_ns <= limit_ns else None

    def _best_move(self, placement: IntArray, item_ns: int) -> tuple[IntArray, int | None]:
        """The placement after it, and its time per item; None: no move makes that less."""
        best_gain, best, best_ns = 0.0, placement, None
        before = self.changes(placement)
        run_ns = self._problem.native.run_ns
        for task, device in zip(*np.nonzero(run_ns != IMPOSSIBLE), strict=True):
            if placement[task] == device:
                continue
            moved = placement.copy()
            moved[task] = device
            moved_ns = self._item_ns(moved)
            if moved_ns is None:
                continue
            gain = (item_ns - moved_ns) / (1 + max(0, self.changes(moved) - before))
            if gain > best_gain:
                best_gain, best, best_ns = gain, moved, moved_ns
        return best, best_ns

    def _item_ns(self, placement: IntArray) -> int | None:
        """The time per item; None: it does not fit."""
        loads = placement_loads(self._problem.native, placement)
        return loads.item_ns if loads.fits(self._problem.cluster) else None
