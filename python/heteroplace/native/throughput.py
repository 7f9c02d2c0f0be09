"""Steady-state throughput in the core: loads of placements, priced relaxation, local search.

With many items under way at once and no batches, the time per item is the largest busy time per
item of any resource: units of devices, and what copies occupy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import heteroplace._core as _core
from heteroplace.native.schedule import IntArray, NativeProblem

FloatArray = npt.NDArray[np.float64]

_MAX_WORK = 20_000_000
"""Table entries that one evaluation of a relaxation reads: some tens of milliseconds."""


@dataclass(frozen=True)
class PlacementLoads:
    """What one item costs under a placement."""

    busy_ns: tuple[int, ...]
    """Busy time of each resource: units by position in `Cluster.units`, then what copies occupy."""
    used_bytes: tuple[int, ...]
    """Bytes in each memory, by the static rule."""
    num_unreachable: int
    """Copies for which there is no route."""

    @property
    def item_ns(self) -> int:
        """Time per item."""
        return max(self.busy_ns, default=0)


def placement_loads(problem: NativeProblem, placement: Sequence[int] | IntArray) -> PlacementLoads:
    """Return the loads of a placement whose tasks are on allowed devices."""
    devices = np.ascontiguousarray(placement, dtype=np.int64)
    busy, used, unreachable = _core.placement_loads(problem._core, devices)
    return PlacementLoads(tuple(busy.tolist()), tuple(used.tolist()), unreachable)


class Relaxation:
    """Least priced cost over all placements; see `src/throughput/relaxation.h`. Not thread-safe."""

    def __init__(self, problem: NativeProblem) -> None:
        """Plan the eliminations of the variables, once for all prices."""
        self._core = _core.Relaxation(problem._core, _MAX_WORK)
        self.num_units = len(problem.cluster.units)
        self.num_resources = num_resources(problem)
        self.is_exact: bool = self._core.is_exact
        """Minima are exact; else variables were split and values may be lower."""

    def evaluate(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the least cost and, per resource and memory, what its minimiser uses.

        Parameters
        ----------
        prices
            [num_resources + num_memories], >= 0: per ns, then per byte.
        """
        value, totals = self._core.evaluate(np.ascontiguousarray(prices))
        return value, totals

    def placement(self) -> IntArray:
        """Return the device of each task in the minimiser of the latest evaluation."""
        placement: IntArray = self._core.placement()
        return placement


def num_resources(problem: NativeProblem) -> int:
    """Return the number of resources: units and what copies occupy."""
    extra = [max(row) + 1 for row in problem.cluster.link_resources if row]
    return max([len(problem.cluster.units), *extra])
