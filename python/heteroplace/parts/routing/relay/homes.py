"""Routers, a profile and a cluster -> the problem of placing branches whose cells have one home.

In a plan a router's rows are dispatched from one tensor and joined in one, so all of its cells meet
before the branches and behind them: they are one group with a home (`dynamic/gather.py`), the
same for all routers, as what lies between these is not cut. Its rows go to each branch
that is elsewhere and come back, which costs what the links take; beside that counts the time of the
slowest memory's devices, by the padded loads of the profile and the operations of each branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.route_profile import RouterProfile
from heteroplace.parts.routing.dynamic.gather import with_homes
from heteroplace.parts.routing.dynamic.placement_problem import Layer, PlacementProblem
from heteroplace.parts.routing.relay.branches.branch_times import memory_speeds
from heteroplace.parts.routing.relay.branches.branch_uses import BranchUse
from heteroplace.parts.routing.relay.router import RouterOptions

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

    What crosses between memories is counted in bytes, and times are those of `branch_times`.

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
    speeds = memory_speeds(cluster, memories)
    layers, sent = [], []
    for options, uses, seen in routers:
        # There and back: both ways are between the same two memories.
        to_branch = [
            seen.mean_load(branch) * (use.row_bytes + use.result_bytes) / 2
            for branch, use in enumerate(uses)
        ]
        weights = tuple(use.weight_bytes for use in uses)
        times = speeds.load_ns(options, uses, seen)
        layers.append(Layer(options.name, len(uses), weights, times))
        sent.append([to_branch])
    nothing = tuple(
        tuple((0.0,) * after.num_members for _ in range(before.num_members))
        for before, after in pairwise(layers)
    )
    problem = PlacementProblem(len(memories), tuple(layers), nothing, speeds.byte_ns, tuple(room))
    return with_homes(problem, sent, (home,), is_movable=False)
