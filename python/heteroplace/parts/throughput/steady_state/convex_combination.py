"""Placements cut from a convex combination: each segment of the graph as another of them has it.

The prices of `prices.py` come with placements and weights whose average loads are at most the
bound. If the modules of a graph are alike, as the layers of a transformer are, then placing a share
`w` of them as a placement of weight `w` has all gives nearly the average. A contiguous split is the
special case of placements on one device each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.solve.problem import Problem

_MAX_ORDERS = 12


def combined_placements(
    problem: Problem, combination: Sequence[tuple[float, IntArray]]
) -> list[IntArray]:
    """Return placements cut from `combination`, for several orders of its members.

    Neighbours in an order agree on many tasks, so that little is copied where they meet. Tasks of
    a group follow the first of them.
    """
    if not combination:
        return []
    weights = np.array([weight for weight, _ in combination])
    members = np.array([placement for _, placement in combination])
    work = np.where(problem.native.run_ns == IMPOSSIBLE, 0, problem.native.run_ns).mean(axis=1)
    share = np.cumsum(work + max(1.0, float(work.mean())) * 1e-3)
    share = (share - share[0]) / max(share[-1], 1.0)
    differ = (members[:, None, :] != members[None, :, :]).mean(axis=2)
    placements = []
    for first in range(min(len(combination), _MAX_ORDERS)):
        order = _nearest_first(differ, first)
        ends = np.cumsum(weights[order]) / weights.sum()
        member = np.minimum(np.searchsorted(ends, share, side="right"), len(order) - 1)
        placement = members[np.array(order)[member], np.arange(members.shape[1])]
        placements.append(_with_groups(problem, placement))
    return placements


def _nearest_first(differ: np.ndarray, first: int) -> list[int]:
    """An order that goes on with the member most like the one before; ties: the heavier."""
    order = [first]
    left = [index for index in range(len(differ)) if index != first]
    while left:
        here = order[-1]
        nearest = min(left, key=lambda index: (float(differ[here, index]), index))
        order.append(nearest)
        left.remove(nearest)
    return order


def _with_groups(problem: Problem, placement: IntArray) -> IntArray:
    device_of_group: dict[int, int] = {}
    for task, group in enumerate(problem.native.task_group):
        if group >= 0:
            placement[task] = device_of_group.setdefault(group, int(placement[task]))
    return placement
