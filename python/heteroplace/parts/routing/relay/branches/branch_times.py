"""Routers, a profile and a cluster -> how long branches take in memories, and rows between them.

Times are ns by the peak of the fastest device beside each memory, and by the links; of a cluster
whose speeds are not all known they are in bytes that cross, of which devices do `FLOPS_PER_BYTE`
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.costs.roofline import device_speeds
from heteroplace.errors import RoutingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.capacities import padded_load
from heteroplace.model.routed.route_profile import RouterProfile
from heteroplace.parts.routing.relay.branches.branch_uses import BranchUse
from heteroplace.parts.routing.relay.router import RouterOptions

FLOPS_PER_BYTE = 100
"""Of a cluster whose speeds are not known: operations of a device in the time in which a byte goes
from memory to memory. It is 10 for a core and the memory of another one, 60 for GPUs that are
linked directly, 800 for those on a bus."""
_PROBE_BYTES = 1 << 20


@dataclass(frozen=True)
class MemorySpeeds:
    """How fast the devices beside some memories are, and the ways between these."""

    flops_per_ns: tuple[float, ...]
    """[num_memories]"""
    byte_ns: tuple[tuple[float, ...], ...]
    """[num_memories][num_memories], both ways on average; 0 on the diagonal."""

    def load_ns(
        self, options: RouterOptions, uses: Sequence[BranchUse], seen: RouterProfile
    ) -> tuple[tuple[float, ...], ...]:
        """Return the mean time of each branch of a router in each memory, by its padded loads.
        [num_branches][num_memories]"""
        times = []
        for branch, use in enumerate(uses):
            rows = sum(
                share * padded_load(load, options.capacities[branch], options.overflow)
                for load, share in seen.load_pmf(branch)
            )
            times.append(tuple(rows * use.row_flops / speed for speed in self.flops_per_ns))
        return tuple(times)

    def cell_ns(self, num_bytes: float) -> tuple[tuple[float, ...], ...]:
        """Return the time of so many bytes from memory to memory. [num_memories][num_memories]"""
        return tuple(tuple(num_bytes * one for one in row) for row in self.byte_ns)


def memory_speeds(cluster: Cluster, memories: Sequence[int]) -> MemorySpeeds:
    """Return those of memories, by their ids.

    Raises
    ------
    RoutingError
        A memory cannot be reached from another one.
    """
    byte_ns = _byte_ns(cluster, memories)
    speeds = _flops_per_ns(cluster, memories)
    if speeds is None:
        speeds = [float(FLOPS_PER_BYTE)] * len(memories)
        byte_ns = [[float(one != other) for other in memories] for one in memories]
    return MemorySpeeds(tuple(speeds), tuple(tuple(row) for row in byte_ns))


def _flops_per_ns(cluster: Cluster, memories: Sequence[int]) -> list[float] | None:
    """Of the fastest device beside each memory; None: one of them is not known."""
    speeds_of_branches = []
    for memory in memories:
        speeds = [device_speeds(each) for each in cluster.devices if each.memory == memory]
        known_speeds = [speed.flops_per_second / 1e9 for speed in speeds if speed is not None]
        if not known_speeds:
            return None
        speeds_of_branches.append(max(known_speeds))
    return speeds_of_branches


def _byte_ns(cluster: Cluster, memories: Sequence[int]) -> list[list[float]]:
    """From each memory to each, both ways on average."""

    def one_way(src: int, dst: int) -> float:
        if src == dst:
            return 0.0
        route = cluster.routes_from(src).get(dst)
        if route is None:
            names = [cluster.memories[memory].name for memory in (src, dst)]
            raise RoutingError(
                f"branches cannot be spread over memories {names[0]!r} and {names[1]!r} of cluster "
                f"{cluster.name!r}: no link leads from the first to the second; add one"
            )
        least, most = (cluster.transfer_ns(route, size) for size in (0, _PROBE_BYTES))
        return (most - least) / _PROBE_BYTES

    return [[(one_way(a, b) + one_way(b, a)) / 2 for b in memories] for a in memories]
