"""A module and the profile of its route decisions -> what its routers are to say of themselves.

One function for each pass of `passes.py`; each returns new options by the name of a router, and
leaves out routers that keep theirs. What an earlier pass chose is taken back where nothing is
chosen now, and stays where too little is known.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import tvm

from heteroplace.errors import RoutingError
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.route_profile import (
    Profile,
    RouteProfile,
    RouterProfile,
    following_routers,
)
from heteroplace.parts.routing.dynamic.gather import without_homes
from heteroplace.parts.routing.dynamic.placement import place_anyhow
from heteroplace.parts.routing.dynamic.placement_problem import (
    PlacementProblem,
    balanced_problem,
    problem_of_profile,
    used_bytes,
)
from heteroplace.parts.routing.dynamic.preload import WeightGroup, check_budget, split_weights
from heteroplace.parts.routing.dynamic.recorded_routes import as_profile, shapes_of
from heteroplace.parts.routing.dynamic.sizes import MIN_RUNS, choose_capacities
from heteroplace.parts.routing.dynamic.specialise import MIN_SHARE
from heteroplace.parts.routing.dynamic.speculated_routes import SpeculationTimes, choose_predictions
from heteroplace.parts.routing.relay.branches.branch_times import MemorySpeeds, memory_speeds
from heteroplace.parts.routing.relay.branches.branch_uses import BranchUse, branch_uses
from heteroplace.parts.routing.relay.branches.branch_weights import BranchWeights
from heteroplace.parts.routing.relay.homes import home_problem
from heteroplace.parts.routing.relay.rewrite import (
    Router,
    model_digest,
    named_routers,
    routers_of,
    update_routers,
)
from heteroplace.solve.problem import SolveOptions

COACTIVATION = "coactivation"
PLACED_BY = ("homes", COACTIVATION, "balance")
PRELOAD_ACTIVATION = 0.5
"""From this share of the runs on weights are loaded ahead."""
_UNKNOWN_TIMES = SpeculationTimes(1.0, 1.0, MIN_SHARE / (1 - MIN_SHARE))
"""Where none are given; builds ask again by what they measure."""
_LOG = logging.getLogger("heteroplace")

Changes = dict[str, dict[str, Any]]
"""New options by the name of a router."""


@dataclass(frozen=True)
class Routed:
    """A module with the profile of its decisions."""

    mod: tvm.IRModule
    """Typed, with named routers."""
    routers: tuple[Router, ...]
    profile: RouteProfile

    @cached_property
    def uses(self) -> Mapping[str, tuple[BranchUse, ...]]:
        """What the branches of each router are, by its name."""
        return branch_uses(self.mod)

    def changed(self, changes: Changes) -> Routed:
        """Return the same with other options of some routers."""
        if not changes:
            return self
        mod = update_routers(self.mod, changes)
        return Routed(mod, routers_of(mod), self.profile)


def routed_module(mod: tvm.IRModule, profile: Profile) -> Routed:
    """Return a module as the others take it.

    Raises
    ------
    RoutingError
        It has no routers, or the profile is not of it or cannot be read.
    """
    profile = as_profile(profile)
    mod = named_routers(mod)
    routers = routers_of(mod)
    if not routers:
        raise RoutingError("the module has no routers, so there is nothing to specialise")
    profile.check_model(model_digest(mod))
    return Routed(mod, routers, profile)


def capacity_changes(routed: Routed, num_sizes: int, mode: str) -> Changes:
    """Return capacities for the loads that branches had; see `ChooseCapacities`."""
    changes: Changes = {}
    for router in routed.routers:
        options, uses = router.options, routed.uses[router.options.name]
        if router.num_cells == 1:
            continue
        seen = routed.profile.router(options.name)
        chosen = choose_capacities(
            seen,
            num_sizes,
            mode=mode,
            kinds=[use.kind for use in uses],
            largest=_largest(router, uses, seen),
        )
        if chosen is None:
            _LOG.info(
                "router %r keeps its capacities: %d of at least %d runs",
                options.name,
                seen.num_runs,
                MIN_RUNS,
            )
        elif chosen != options.capacities:
            changes[options.name] = {"capacities": chosen}
    return changes


def _largest(router: Router, uses: Sequence[BranchUse], seen: RouterProfile) -> list[int | None]:
    """For each branch the capacity that it must have; None: its largest load will do."""
    options = router.options
    is_free = [options.overflow == "rounds" and not use.holds_router for use in uses]
    largest: list[int | None] = []
    for branch, use in enumerate(uses):
        if not is_free[branch]:
            largest.append(options.capacities[branch][-1])
            continue
        alike = [other for other, one in enumerate(uses) if one.kind == use.kind]
        most = max(1, *(seen.max_load(other) for other in alike))
        # A further round begins behind as many rows, where kernels must be able to take tensors.
        aligned = -(-most // use.row_multiple) * use.row_multiple
        largest.append(min(aligned, router.num_cells) if aligned > most else None)
    return largest


def taken_back(routed: Routed, option: str, names: Collection[str]) -> Changes:
    """Return an option as "", which is nothing, for those of some routers that say more."""
    return {
        router.options.name: {option: ""}
        for router in routed.routers
        if router.options.name in names and getattr(router.options, option)
    }


def memory_ids(cluster: Cluster) -> list[int]:
    """Return the memories that a device computes in, by id."""
    return sorted({device.memory for device in cluster.devices})


def memory_changes(
    routed: Routed, cluster: Cluster, by: str = PLACED_BY[0], options: SolveOptions | None = None
) -> Changes:
    """Return the memories of branches; see `PlaceBranches`."""
    ids = memory_ids(cluster)
    names = [cluster.memories[id].name for id in ids]
    if any("," in name for name in names):
        raise RoutingError(f"memories of branches are listed with commas: rename {names}")
    if len(ids) < 2:
        return taken_back(routed, "memories", placed_routers(routed))
    place = _by_homes if by == PLACED_BY[0] else partial(_by_chains, by=by)
    memories_of = place(routed, cluster, ids, options)
    return {
        name: {"memories": ",".join(names[memory] for memory in members)}
        for name, members in memories_of.items()
    }


def _by_homes(
    routed: Routed, cluster: Cluster, ids: Sequence[int], options: SolveOptions | None
) -> dict[str, tuple[int, ...]]:
    """Members of all routers for the best home."""
    router_names = placed_routers(routed)
    if not router_names:
        return {}
    of_name = {router.options.name: router.options for router in routed.routers}
    routers = [
        (of_name[name], routed.uses[name], routed.profile.router(name)) for name in router_names
    ]
    room = [cluster.memories[id].bytes for id in ids]
    problems = [home_problem(routers, cluster, ids, room, home) for home in range(len(ids))]
    each = [place_anyhow(problem, options) for problem in problems]
    best = min(each, key=lambda placement: placement.objective)
    home = cluster.memories[ids[each.index(best)]].name
    _LOG.info("branches of %s, home %s: %s", ", ".join(router_names), home, best.text("bytes"))
    return dict(zip(router_names, without_homes(best.memories), strict=True))


def _by_chains(
    routed: Routed,
    cluster: Cluster,
    ids: Sequence[int],
    options: SolveOptions | None,
    *,
    by: str,
) -> dict[str, tuple[int, ...]]:
    """Members of routers that follow each other, chain by chain, in the room that is left."""
    room = [cluster.memories[id].bytes for id in ids]
    speeds = memory_speeds(cluster, ids) if by == COACTIVATION else None
    placed: dict[str, tuple[int, ...]] = {}
    for chain in _chains(routed, is_linked=by == COACTIVATION):
        if speeds is not None:
            problem = _chain_problem(routed, chain, speeds, room)
        else:
            weights = [[use.weight_bytes for use in routed.uses[name]] for name in chain]
            problem = balanced_problem(
                routed.profile, chain, len(ids), weight_bytes=weights, memory_bytes=room
            )
        placement = place_anyhow(problem, options)
        _LOG.info("branches of %s: %s", ", ".join(chain), placement.text())
        room = [
            left - used
            for left, used in zip(room, used_bytes(problem, placement.memories), strict=True)
        ]
        placed |= zip(chain, placement.memories, strict=True)
    return placed


def _chain_problem(
    routed: Routed, chain: Sequence[str], speeds: MemorySpeeds, room: Sequence[int]
) -> PlacementProblem:
    """What branches take, and cells that go from one router's to the next's."""
    options = {router.options.name: router.options for router in routed.routers}
    uses = [routed.uses[name] for name in chain]
    return problem_of_profile(
        *(routed.profile, chain, len(speeds.flops_per_ns)),
        weight_bytes=[[use.weight_bytes for use in branches] for branches in uses],
        load_ns=[
            speeds.load_ns(options[name], routed.uses[name], routed.profile.router(name))
            for name in chain
        ],
        cell_ns=speeds.cell_ns(max(use.row_bytes for branches in uses for use in branches)),
        memory_bytes=room,
    )


def _chains(routed: Routed, *, is_linked: bool) -> list[list[str]]:
    """Routers outside of branches with enough runs, in chains that cells were seen to follow, or
    each by itself."""
    outer = {
        router.options.name
        for router in routed.routers
        if router.parent is None and router.options.num_branches > 1
    }
    shapes = shapes_of(routed.profile)
    after = {
        shapes[src].name: shapes[dst].name
        for src, dst in following_routers(shapes)
        if is_linked and routed.profile.transition(shapes[src].name, shapes[dst].name) is not None
    }
    known_chains = [
        shape.name
        for shape in shapes
        if shape.name in outer and routed.profile.router(shape.name).num_runs >= MIN_RUNS
    ]
    chains: list[list[str]] = []
    for name in known_chains:
        chain = next((one for one in chains if after.get(one[-1]) == name), None)
        if chain is None:
            chains.append([name])
        else:
            chain.append(name)
    return chains


def placed_routers(routed: Routed) -> list[str]:
    """Return the names of routers of whose branches the memories are chosen."""
    return [name for chain in _chains(routed, is_linked=False) for name in chain]


def predicted_routers(routed: Routed) -> list[str]:
    """Return the names of routers that may be predicted."""
    names = [router.options.name for router in routed.routers if router.num_cells == 1]
    return [name for name in names if routed.profile.router(name).num_runs >= MIN_RUNS]


def preloaded_routers(routed: Routed) -> list[str]:
    """Return the names of routers of which weights of branches may be loaded while it runs."""
    return [router.options.name for router in routed.routers if router.parent is None]


def prediction_changes(routed: Routed, times: Mapping[str, SpeculationTimes]) -> Changes:
    """Return the branches that are predicted; see `SpeculateRoutes`."""
    depth: dict[str, int] = {}
    routers = []
    for router in routed.routers:
        name = router.options.name
        depth[name] = 0 if router.parent is None else depth[router.parent[0]] + 1
        if router.num_cells == 1:
            routers.append(routed.profile.router(name))
    predictions = choose_predictions(
        routers, {each.name: times.get(each.name, _UNKNOWN_TIMES) for each in routers}, depth
    )
    changes = taken_back(routed, "predict", predicted_routers(routed))
    holding_routers = {router.parent for router in routed.routers}
    for each in predictions:
        # What is behind another router waits for that one in any case.
        if not any((each.router, branch) in holding_routers for branch in each.branches):
            branches = ",".join(map(str, each.branches))
            changes[each.router] = {"predict": f"{branches}@{each.probability:.6g}"}
    return changes


def preload_changes(routed: Routed, budget_bytes: int, *, has_ahead: bool = True) -> Changes:
    """Return which weights of branches stay and which are loaded ahead; see `PreloadWeights`."""
    groups, places = [], []
    for name in preloaded_routers(routed):
        seen = routed.profile.router(name)
        for branch, use in enumerate(routed.uses[name]):
            if use.weight_bytes:
                size, share = use.weight_bytes, seen.activation(branch)
                groups.append(WeightGroup(f"{name}/{branch}", size, size, share))
                places.append((name, branch))
    check_budget(groups, budget_bytes)
    if sum(group.weight_bytes for group in groups) <= budget_bytes:
        return taken_back(routed, "preload", preloaded_routers(routed))
    stays, ahead = split_weights(groups, budget_bytes, PRELOAD_ACTIVATION if has_ahead else None)
    weights_of: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for index, (group, (name, branch)) in enumerate(zip(groups, places, strict=True)):
        resident, loaded = weights_of.setdefault(name, ([], []))
        entry = branch, round(1000 * group.activation)
        if index in stays:
            resident.append(entry)
        elif index in ahead:
            loaded.append(entry)
    return {
        name: {"preload": BranchWeights(budget_bytes, tuple(resident), tuple(loaded)).text()}
        for name, (resident, loaded) in weights_of.items()
    }
