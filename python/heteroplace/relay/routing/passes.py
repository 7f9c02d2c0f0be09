"""A profile of route decisions -> the module whose routers are specialised to it.

    ChooseCapacities   router(%mask; capacities 1,2,4,..)  ==>  router(%mask; capacities 2,18,64)
    PlaceBranches      router(%mask; memories "")          ==>  router(%mask; memories "gpu0,gpu1")
    SpeculateRoutes    router(%mask; predict "")           ==>  router(%mask; predict "0,1")
    PreloadWeights     router(%mask; preload "")           ==>  router(%mask; preload "0,3")

They change attributes of routers only, so the module computes what it did, and running one of them
on its own output changes nothing. `Specialise` asks the rules of `heteroplace.dynamic.specialise`
which of them pay, and says so. Names are given to routers that have none; the profile must be of
the model by its digest, which does not depend on these attributes.

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 4.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relay

from heteroplace.dynamic.placement import place_branches
from heteroplace.dynamic.placement_problem import (
    balanced_problem,
    problem_of_profile,
    used_bytes,
)
from heteroplace.dynamic.preload import WeightGroup, check_budget, choose_residents
from heteroplace.dynamic.profile import read_profile, shapes_of
from heteroplace.dynamic.sizes import MIN_RUNS, choose_capacities
from heteroplace.dynamic.specialise import (
    CAPACITIES,
    PLACEMENT,
    PRELOADING,
    SPECULATION,
    Choice,
    RouterUse,
    specialise,
)
from heteroplace.dynamic.speculation import SpeculationTimes, choose_predictions
from heteroplace.errors import RoutingError
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.route_profile import RouteProfile, RouterProfile, following_routers
from heteroplace.relay.routing.branch_uses import BranchUse, branch_uses
from heteroplace.relay.routing.rewrite import (
    Router,
    model_digest,
    named_routers,
    routers_of,
    update_routers,
)
from heteroplace.solve.problem import SolveOptions

NUM_SIZES = 6
"""Capacities of a kind of branches: what the paper's networks of 256 experts need per layer."""
PRELOAD_ACTIVATION = 0.5
"""From this share of the runs on weights are loaded ahead."""
_UNKNOWN_TIMES = SpeculationTimes(1.0, 1.0, 1.0)
"""Where none are measured a miss is taken to cost what a hit saves: more hits than misses pay."""
_LOG = logging.getLogger("heteroplace")

Profile = RouteProfile | str | os.PathLike[str]
"""A profile, or the path of one or of a recording."""
Changes = dict[str, dict[str, Any]]
"""New options by the name of a router."""


@dataclass(frozen=True)
class _Routed:
    """A module with the profile of its decisions."""

    mod: tvm.IRModule
    """Typed, with named routers."""
    routers: tuple[Router, ...]
    uses: Mapping[str, tuple[BranchUse, ...]]
    profile: RouteProfile


def _routed(mod: tvm.IRModule, profile: Profile) -> _Routed:
    """Raise RoutingError where the profile is not that of the module."""
    if not isinstance(profile, RouteProfile):
        profile = read_profile(profile)
    mod = relay.transform.InferType()(named_routers(mod))
    routers = routers_of(mod)
    if not routers:
        raise RoutingError("the module has no routers, so there is nothing to specialise")
    profile.check_model(model_digest(mod))
    return _Routed(mod, routers, branch_uses(mod), profile)


def _updated(routed: _Routed, changes: Changes) -> tvm.IRModule:
    return update_routers(routed.mod, changes) if changes else routed.mod


def ChooseCapacities(  # noqa: N802  (TVM's passes are factories named like classes)
    profile: Profile, num_sizes: int = NUM_SIZES, mode: str = "optimal"
) -> tvm.transform.ModulePass:
    """Return the pass that compiles branches for the loads that they had.

    Parameters
    ----------
    num_sizes, mode
        As of `choose_capacities`; branches of one kind share their sizes.

    A router of fewer than `MIN_RUNS` runs keeps its capacities. So does one with whole tensors as
    cells, which has none to choose; and the largest one stays where the model's numbers or errors,
    or a router inside of the branch, depend on it.

    Raises
    ------
    RoutingError
        When the pass runs: the profile is of another model, or a parameter is wrong.
    """

    def change(routed: _Routed) -> Changes:
        return _capacities(routed, num_sizes, mode)

    return _pass("ChooseCapacities", profile, change)


def PlaceBranches(  # noqa: N802
    profile: Profile, cluster: Cluster | str | os.PathLike[str], **options: Any
) -> tvm.transform.ModulePass:
    """Return the pass that puts branches that the same cells take into one memory of a cluster.

    Parameters
    ----------
    cluster
        As of `HeteroPlace`; with one memory nothing changes.
    options
        Of `SolveOptions`: `time_limit_s`, `seed`, `engine`.

    Raises
    ------
    ClusterError
        The cluster file is wrong.
    RoutingError, InfeasibleError
        When the pass runs: the profile is of another model; weights do not fit.
    """
    found = cluster if isinstance(cluster, Cluster) else open_cluster(cluster)
    solve = SolveOptions(**options)
    return _pass("PlaceBranches", profile, lambda routed: _memories(routed, found, solve))


def SpeculateRoutes(  # noqa: N802
    profile: Profile, times: Mapping[str, SpeculationTimes] | None = None
) -> tvm.transform.ModulePass:
    """Return the pass that predicts routers where that is expected to pay.

    Parameters
    ----------
    times
        By the name of a router. Of one that is missing a miss is taken to cost what a hit saves.

    Only routers with whole tensors as cells are predicted, and of their branches those without
    routers: rows are known when the router has decided. Raises, when the pass runs, RoutingError as `ChooseCapacities`.
    """
    return _pass("SpeculateRoutes", profile, lambda routed: _predictions(routed, times or {}))


def PreloadWeights(  # noqa: N802
    profile: Profile, budget_bytes: int
) -> tvm.transform.ModulePass:
    """Return the pass that says of which branches weights are loaded ahead.

    Parameters
    ----------
    budget_bytes
        For the weights of all branches that are held at once.

    What saves most time of loads stays within the budget, beside room for the largest branch; of
    the others those are loaded ahead that are active in most runs. Where all weights fit nothing
    is. Raises, when the pass runs, RoutingError as `ChooseCapacities`, and InfeasibleError where a
    branch is larger than the budget.
    """
    return _pass("PreloadWeights", profile, lambda routed: _preloads(routed, budget_bytes))


def Specialise(  # noqa: N802
    profile: Profile,
    cluster: Cluster | str | os.PathLike[str] | None = None,
    *,
    times: Mapping[str, SpeculationTimes] | None = None,
    num_sizes: int = NUM_SIZES,
    forced: Mapping[str, bool] | None = None,
    report: Callable[[str], None] | None = None,
) -> tvm.transform.ModulePass:
    """Return the pass that does of all these what pays, and says why.

    Parameters
    ----------
    cluster
        As of `HeteroPlace`; None: one memory with room for everything.
    times
        As of `SpeculateRoutes`, but a router that is missing is not predicted.
    num_sizes
        As of `ChooseCapacities`.
    forced
        Rules that are not asked: see `heteroplace.dynamic.specialise.specialise`.
    report
        Takes a line for each rule and router: rule, inputs, decision. None: they go to the logger
        `heteroplace`.

    Raises
    ------
    ClusterError
        The cluster file is wrong.
    RoutingError, InfeasibleError
        As of the others, when the pass runs.
    """
    found = cluster if cluster is None or isinstance(cluster, Cluster) else open_cluster(cluster)

    def change(routed: _Routed) -> Changes:
        changes, choices = _specialised(routed, found, times or {}, num_sizes, forced)
        for choice in choices:
            (report or _LOG.info)(choice.text())
        return changes

    return _pass("Specialise", profile, change)


def _pass(
    name: str, profile: Profile, change: Callable[[_Routed], Changes]
) -> tvm.transform.ModulePass:
    def transform(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        routed = _routed(mod, profile)
        return _updated(routed, change(routed))

    return tvm.transform.module_pass(transform, opt_level=0, name=name)


def _specialised(
    routed: _Routed,
    cluster: Cluster | None,
    times: Mapping[str, SpeculationTimes],
    num_sizes: int,
    forced: Mapping[str, bool] | None,
) -> tuple[Changes, tuple[Choice, ...]]:
    memories = [] if cluster is None else _memory_ids(cluster)
    room = None if cluster is None else sum(cluster.memories[id].bytes for id in memories)
    weights = {name: sum(use.weight_bytes for use in uses) for name, uses in routed.uses.items()}
    total = sum(weights[router.options.name] for router in routed.routers if router.parent is None)
    choices = specialise(
        [
            RouterUse(
                routed.profile.router(router.options.name),
                max(1, len(memories)) if router.parent is None else 1,
                times=times.get(router.options.name) if router.num_cells == 1 else None,
                weight_bytes=total,
                room_bytes=room,
            )
            for router in routed.routers
        ],
        forced,
    )
    chosen = {(choice.router, choice.rule) for choice in choices if choice.is_chosen}
    changes: Changes = {}
    makers: dict[str, Callable[[], Changes]] = {
        CAPACITIES: lambda: _capacities(routed, num_sizes, "optimal"),
        PLACEMENT: lambda: {} if cluster is None else _memories(routed, cluster, SolveOptions()),
        SPECULATION: lambda: _predictions(routed, times),
        PRELOADING: lambda: {} if room is None else _preloads(routed, room),
    }
    for rule, make in makers.items():
        if any(each == rule for _, each in chosen):
            for name, options in make().items():
                if (name, rule) in chosen:
                    changes.setdefault(name, {}).update(options)
    return changes, choices


def _capacities(routed: _Routed, num_sizes: int, mode: str) -> Changes:
    changes: Changes = {}
    for router in routed.routers:
        options, uses = router.options, routed.uses[router.options.name]
        if router.num_cells == 1:
            continue
        seen = routed.profile.router(options.name)
        found = choose_capacities(
            seen,
            num_sizes,
            mode=mode,
            kinds=[use.kind for use in uses],
            largest=_largest(router, uses, seen),
        )
        if found is None:
            _LOG.info(
                "router %r keeps its capacities: %d of at least %d runs",
                options.name,
                seen.num_runs,
                MIN_RUNS,
            )
        elif found != options.capacities:
            changes[options.name] = {"capacities": found}
    return changes


def _largest(router: Router, uses: Sequence[BranchUse], seen: RouterProfile) -> list[int | None]:
    """For each branch the capacity that it must have; None: its largest load will do."""
    options = router.options
    is_free = [options.overflow == "rounds" and not use.holds_router for use in uses]
    found: list[int | None] = []
    for branch, use in enumerate(uses):
        if not is_free[branch]:
            found.append(options.capacities[branch][-1])
            continue
        alike = [other for other, one in enumerate(uses) if one.kind == use.kind]
        most = max(1, *(seen.max_load(other) for other in alike))
        # A further round begins behind as many rows, where kernels must be able to take tensors.
        aligned = -(-most // use.row_multiple) * use.row_multiple
        found.append(min(aligned, router.num_cells) if aligned > most else None)
    return found


def _memory_ids(cluster: Cluster) -> list[int]:
    """Memories that a device computes in, by id."""
    return sorted({device.memory for device in cluster.devices})


def _memories(routed: _Routed, cluster: Cluster, options: SolveOptions) -> Changes:
    ids = _memory_ids(cluster)
    names = [cluster.memories[id].name for id in ids]
    if any("," in name for name in names):
        raise RoutingError(f"memories of branches are listed with commas: rename {names}")
    if len(ids) < 2:
        return {}
    room = [cluster.memories[id].bytes for id in ids]
    changes: Changes = {}
    for chain in _chains(routed):
        weights = [[use.weight_bytes for use in routed.uses[name]] for name in chain]
        make = problem_of_profile if len(chain) > 1 else balanced_problem
        problem = make(routed.profile, chain, len(ids), weight_bytes=weights, memory_bytes=room)
        found = place_branches(problem, options)
        _LOG.info("branches of %s: %s", ", ".join(chain), found.text())
        room = [
            left - used
            for left, used in zip(room, used_bytes(problem, found.memories), strict=True)
        ]
        for name, members in zip(chain, found.memories, strict=True):
            changes[name] = {"memories": ",".join(names[memory] for memory in members)}
    return changes


def _chains(routed: _Routed) -> list[list[str]]:
    """Routers outside of branches with enough runs, in chains that cells were seen to follow."""
    outer = {
        router.options.name
        for router in routed.routers
        if router.parent is None and router.options.num_branches > 1
    }
    shapes = shapes_of(routed.profile)
    after = {
        shapes[src].name: shapes[dst].name
        for src, dst in following_routers(shapes)
        if routed.profile.transition(shapes[src].name, shapes[dst].name) is not None
    }
    known = [
        shape.name
        for shape in shapes
        if shape.name in outer and routed.profile.router(shape.name).num_runs >= MIN_RUNS
    ]
    chains: list[list[str]] = []
    for name in known:
        chain = next((one for one in chains if after.get(one[-1]) == name), None)
        if chain is None:
            chains.append([name])
        else:
            chain.append(name)
    return chains


def _predictions(routed: _Routed, times: Mapping[str, SpeculationTimes]) -> Changes:
    depth: dict[str, int] = {}
    asked = []
    for router in routed.routers:
        name = router.options.name
        depth[name] = 0 if router.parent is None else depth[router.parent[0]] + 1
        if router.num_cells == 1:
            asked.append(routed.profile.router(name))
    found = choose_predictions(
        asked, {each.name: times.get(each.name, _UNKNOWN_TIMES) for each in asked}, depth
    )
    changes: Changes = {}
    for each in found:
        uses = routed.uses[each.router]
        # What is behind another router waits for that one in any case.
        branches = [branch for branch in each.branches if not uses[branch].holds_router]
        if branches:
            changes[each.router] = {"predict": ",".join(map(str, branches))}
    return changes


def _preloads(routed: _Routed, budget_bytes: int) -> Changes:
    groups, places = [], []
    for router in routed.routers:
        name = router.options.name
        if router.parent is not None:
            continue
        seen = routed.profile.router(name)
        for branch, use in enumerate(routed.uses[name]):
            if use.weight_bytes:
                share = seen.activation(branch)
                groups.append(
                    WeightGroup(f"{name}/{branch}", use.weight_bytes, use.weight_bytes, share)
                )
                places.append((name, branch))
    check_budget(groups, budget_bytes)
    if sum(group.weight_bytes for group in groups) <= budget_bytes:
        return {}
    largest = max(group.weight_bytes for group in groups)
    stays = set(choose_residents(groups, budget_bytes - largest))
    ahead: dict[str, list[int]] = {}
    for index, (group, (name, branch)) in enumerate(zip(groups, places, strict=True)):
        if index not in stays and group.activation >= PRELOAD_ACTIVATION:
            ahead.setdefault(name, []).append(branch)
    return {name: {"preload": ",".join(map(str, branches))} for name, branches in ahead.items()}
