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

from collections.abc import Sequence

import numpy as np

from heteroplace.native.arrays import IMPOSSIBLE, IntArray
from heteroplace.native.throughput import PlacementLoads, placement_loads
from heteroplace.solve.problem import Problem

MAX_TRIALS = 2_000
"""Placements that are tried for one move; of larger graphs nothing is changed."""
_MAX_MOVES = 12
"""Moves from one split; each may add two changes of device for each tensor."""


def with_few_changes(
    problem: Problem, found: IntArray, splits: Sequence[IntArray], limit_ns: int
) -> IntArray | None:
    """Return a placement with fewer changes of device than `found`; None: there is none.

    Parameters
    ----------
    found
        Device id of each task. [num_tasks]
    splits
        Placements from which to start.
    limit_ns
        Most time per item.
    """
    num_trials = len(found) * len(problem.cluster.devices)
    if num_trials > MAX_TRIALS or any(group >= 0 for group in problem.native.task_group):
        return None
    balancing = _Balancing(problem)
    near = [balancing.balanced(split, limit_ns) for split in splits]
    fewest = min((one for one in near if one is not None), key=balancing.changes, default=None)
    if fewest is None or balancing.changes(fewest) >= balancing.changes(found):
        return None
    return fewest


class _Balancing:
    """Moves of single tasks off the busiest device."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
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
        placement = split
        for _ in range(_MAX_MOVES):
            loads = self._loads(placement)
            if loads is None:
                return None
            if loads.item_ns <= limit_ns:
                return placement
            moved = self._best_move(placement, loads.item_ns)
            if moved is None:
                return None
            placement = moved
        loads = self._loads(placement)
        return placement if loads is not None and loads.item_ns <= limit_ns else None

    def _best_move(self, placement: IntArray, item_ns: int) -> IntArray | None:
        best: tuple[float, IntArray] | None = None
        before = self.changes(placement)
        run_ns = self._problem.native.run_ns
        for task, device in zip(*np.nonzero(run_ns != IMPOSSIBLE), strict=True):
            if placement[task] == device:
                continue
            moved = placement.copy()
            moved[task] = device
            loads = self._loads(moved)
            if loads is None or loads.item_ns >= item_ns:
                continue
            gain = (item_ns - loads.item_ns) / (1 + max(0, self.changes(moved) - before))
            if best is None or gain > best[0]:
                best = gain, moved
        return None if best is None else best[1]

    def _loads(self, placement: IntArray) -> PlacementLoads | None:
        """The loads; None: it does not fit."""
        loads = placement_loads(self._problem.native, placement)
        sizes = [memory.bytes for memory in self._problem.cluster.memories]
        fits = all(used <= size for used, size in zip(loads.used_bytes, sizes, strict=True))
        return loads if fits and not loads.num_unreachable else None
