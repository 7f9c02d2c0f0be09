"""Routers, a profile and a cluster -> the problem of placing branches whose cells have one home.

In a plan a router's rows are dispatched from one tensor and joined in one, so all of its cells meet
before the branches and behind them: they are one group with a home (`heteroplace.dynamic.gather`),
the same for all routers, as what lies between these is not cut. Its rows go to each branch
that is elsewhere and come back, which costs what the links take; beside that counts the time of the
slowest memory's devices, by the padded loads of the profile and the operations of each branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from heteroplace.costs.roofline import device_speeds
from heteroplace.dynamic.gather import with_homes
from heteroplace.dynamic.placement_problem import Layer, PlacementProblem
from heteroplace.errors import RoutingError
from heteroplace.model.capacities import padded_load
from heteroplace.model.cluster import Cluster
from heteroplace.model.route_profile import RouterProfile
from heteroplace.relay.routing.branch_uses import BranchUse
from heteroplace.relay.routing.router import RouterOptions

FLOPS_PER_BYTE = 100
"""Of a cluster whose speeds are not known: operations of a device in the time in which a byte goes
from memory to memory. It is 10 for a core and the memory of another one, 60 for GPUs that are
linked directly, 800 for those on a bus."""
_PROBE_BYTES = 1 << 20

RoutedBranches = tuple[RouterOptions, Sequence[BranchUse], RouterProfile]
"""A router, its branches, and what is known of them."""


def home_problem(
    routers: Sequence[RoutedBranches],
    cluster: Cluster,
    memories: Sequence[int],
    room: Sequence[int],
    home: int,
) -> PlacementProblem:
    """Return the problem; layers of homes and of branches alternate, as `with_homes` makes them.

    What crosses between memories is counted in bytes, and times are ns; of a cluster whose speeds
    are not all known they are in bytes too, of which devices do `FLOPS_PER_BYTE` each.

    Parameters
    ----------
    memories
        Ids of those that branches may lie in.
    room
        Bytes of weights that each of them holds. [num_memories]
    home
        Position in `memories`.

    Raises
    ------
    RoutingError
        A memory cannot be reached from another one.
    """
    speeds = _flops_per_ns(cluster, memories)
    byte_ns = _byte_ns(cluster, memories)
    if speeds is None:
        speeds = [float(FLOPS_PER_BYTE)] * len(memories)
        byte_ns = [[float(one != other) for other in memories] for one in memories]
    layers, sent = [], []
    for options, uses, seen in routers:
        times, to_branch = [], []
        for branch, use in enumerate(uses):
            rows = sum(
                share * padded_load(load, options.capacities[branch], options.overflow)
                for load, share in seen.load_pmf(branch)
            )
            times.append(tuple(rows * use.row_flops / speed for speed in speeds))
            # There and back: both ways are between the same two memories.
            to_branch.append(seen.mean_load(branch) * (use.row_bytes + use.result_bytes) / 2)
        weights = tuple(use.weight_bytes for use in uses)
        layers.append(Layer(options.name, len(uses), weights, tuple(times)))
        sent.append([to_branch])
    nothing = tuple(
        tuple((0.0,) * after.num_members for _ in range(before.num_members))
        for before, after in pairwise(layers)
    )
    rows_ns = tuple(tuple(row) for row in byte_ns)
    problem = PlacementProblem(len(memories), tuple(layers), nothing, rows_ns, tuple(room))
    return with_homes(problem, sent, (home,), is_movable=False)


def _flops_per_ns(cluster: Cluster, memories: Sequence[int]) -> list[float] | None:
    """Of the fastest device beside each memory; None: one of them is not known."""
    found = []
    for memory in memories:
        speeds = [device_speeds(each) for each in cluster.devices if each.memory == memory]
        known = [speed.flops_per_second / 1e9 for speed in speeds if speed is not None]
        if not known:
            return None
        found.append(max(known))
    return found


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
