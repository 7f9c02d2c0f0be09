"""A placement -> what one item costs in a steady state: busy times and bytes, by the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import heteroplace._core as _core
from heteroplace.model.cluster import Cluster
from heteroplace.native.core_arrays import IntArray
from heteroplace.native.core_problem import NativeProblem


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

    def excess_bytes(self, cluster: Cluster) -> int:
        """Return what does not fit, over all memories."""
        used = zip(self.used_bytes, cluster.memories, strict=True)
        return sum(max(0, held - memory.bytes) for held, memory in used)

    def fits(self, cluster: Cluster) -> bool:
        """Say whether all memories hold it, and there is a route for each copy."""
        return not self.num_unreachable and not self.excess_bytes(cluster)


def placement_loads(problem: NativeProblem, placement: Sequence[int] | IntArray) -> PlacementLoads:
    """Return the loads of a placement whose tasks are on allowed devices."""
    devices = np.ascontiguousarray(placement, dtype=np.int64)
    busy, used, unreachable = _core.placement_loads(problem, devices)
    return PlacementLoads(tuple(busy.tolist()), tuple(used.tolist()), unreachable)
