"""A profile of route decisions -> the module whose routers are specialised to it.

    ChooseCapacities   router(%mask; capacities 1,2,4,..)  ==>  router(%mask; capacities 2,18,64)
    PlaceBranches      router(%mask; memories "")          ==>  router(%mask; memories "gpu0,gpu1")
    SpeculateRoutes    router(%mask; predict "")           ==>  router(%mask; predict "0,1")
    PreloadWeights     router(%mask; preload "")           ==>  router(%mask; preload "budget 400;
                                                                keep 0:1000; ahead 3:900")

They change attributes of routers only, so the module computes what it did, and running one of them
on its own output changes nothing. `Specialise` asks the rules of `dynamic/specialise.py`
which of them pay, and says so. Names are given to routers that have none; the profile must be of
the model by its digest, which does not depend on these attributes.

Source: Cui et al., "Optimizing Dynamic Neural Networks with Brainstorm" (OSDI 2023), 4.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tvm

from heteroplace.errors import RoutingError, SolverError
from heteroplace.machine.local import open_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.model.routed.route_profile import Profile, RouteProfile
from heteroplace.option_types import check_types
from heteroplace.options import by_attribute
from heteroplace.parts.routing.dynamic.specialise import (
    CAPACITIES,
    GROUPING,
    MAX_ROOM_SHARE,
    PLACEMENT,
    PRELOADING,
    SPECULATION,
    RouterUse,
    RuleChoice,
    specialise,
)
from heteroplace.parts.routing.dynamic.speculated_routes import SpeculationTimes
from heteroplace.parts.routing.find.find_routers import without_branches
from heteroplace.parts.routing.relay.changed_networks import (
    PLACED_BY,
    Changes,
    Routed,
    capacity_changes,
    memory_changes,
    memory_ids,
    placed_routers,
    predicted_routers,
    prediction_changes,
    preload_changes,
    preloaded_routers,
    routed_module,
    taken_back,
)
from heteroplace.relay.router_ops import has_routers
from heteroplace.relay.tasks.network import bound_module
from heteroplace.relay.types_once import types_once
from heteroplace.solve.problem import SolveOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from heteroplace.option_keywords import SearchKeywords

NUM_SIZES = 6
"""Capacities of a kind of branches: what the paper's networks of 256 experts need per layer."""
_SEARCH_OPTIONS = ("time_limit", "seed", "engine")
_LOG = logging.getLogger("heteroplace")


def ChooseCapacities(  # noqa: N802  (TVM's passes are factories named like classes)
    profile: Profile, num_sizes: int = NUM_SIZES, mode: str = "optimal"
) -> tvm.transform.ModulePass:
    """Return the pass that compiles branches for the loads that they had.

    A router of fewer than `MIN_RUNS` runs keeps its capacities. So does one with whole tensors as
    cells, which has none to choose; and the largest one stays where the model's numbers or errors,
    or a router inside of the branch, depend on it.

    Parameters
    ----------
    num_sizes, mode
        As of `choose_capacities`; branches of one kind share their sizes.

    Raises
    ------
    RoutingError
        When the pass runs: the profile is of another model, or a parameter is wrong.
    """

    def change(routed: Routed) -> Changes:
        return capacity_changes(routed, num_sizes, mode)

    return _pass("ChooseCapacities", profile, change)


def PlaceBranches(  # noqa: N802
    profile: Profile,
    cluster: Cluster | str | os.PathLike[str],
    by: str = PLACED_BY[0],
    **options: Unpack[SearchKeywords],
) -> tvm.transform.ModulePass:
    """Return the pass that chooses the memories of branches, as many of a router in each, or, where
    that does not fit, as many as there is room for.

    Parameters
    ----------
    cluster
        As of `HeteroPlace`; with one memory nothing changes.
    by
        One of `PLACED_BY`. "homes": for plans as solvers make them, in which a router's rows leave
        one memory and come back: the least time of devices and links; "coactivation": for
        networks that send cells from router to router by themselves, the least time of devices and
        of cells that change their memory in between; needs a recording of level 2; "balance":
        equal loads for each router.
    options
        As of `HeteroPlace`: `time_limit`, `seed`, `engine`.

    Raises
    ------
    ClusterError
        The cluster file is wrong.
    RoutingError
        `by` is something else; or, when the pass runs, the profile is of another model, or no link
        joins two memories and `by` is not "balance".
    SolverError
        There is no such option, or a value is wrong.
    InfeasibleError
        When the pass runs: weights do not fit.
    """
    if by not in PLACED_BY:
        raise RoutingError(f"by is {by!r}, expected one of {', '.join(PLACED_BY)}")
    solve = _search_options(options)
    opened = cluster if isinstance(cluster, Cluster) else open_cluster(cluster)
    return _pass("PlaceBranches", profile, lambda routed: memory_changes(routed, opened, by, solve))


def _search_options(given: Mapping[str, Any]) -> SolveOptions:
    """The options of `PlaceBranches`, which has few of those of `HeteroPlace`."""
    unknown = [name for name in given if name not in _SEARCH_OPTIONS]
    if unknown:
        raise SolverError(
            f"PlaceBranches has no option {', '.join(unknown)}; it has: "
            f"{', '.join(_SEARCH_OPTIONS)}"
        )
    (options,) = by_attribute([SolveOptions], given, "PlaceBranches", SolverError)
    check_types(SolveOptions, options, "PlaceBranches", SolverError)
    return SolveOptions(**options)


def SpeculateRoutes(  # noqa: N802
    profile: Profile, times: Mapping[str, SpeculationTimes] | None = None
) -> tvm.transform.ModulePass:
    """Return the pass that predicts routers where that is expected to pay.

    Parameters
    ----------
    times
        By the name of a router. Of one that is missing a miss is taken to cost what a hit saves.
        A build asks again by what its plan takes, and leaves out what does not pay.

    Only routers with whole tensors as cells are predicted, and of their branches those without
    routers: rows are known when the router has decided. Raises, when the pass runs, RoutingError as
    `ChooseCapacities`.
    """
    return _pass("SpeculateRoutes", profile, lambda routed: prediction_changes(routed, times or {}))


def PreloadWeights(  # noqa: N802
    profile: Profile, budget_bytes: int, *, ahead: bool = True
) -> tvm.transform.ModulePass:
    """Return the pass that has the weights of branches held within a budget.

    Parameters
    ----------
    budget_bytes
        For the weights of all branches that are held at any time, in each memory where branches
        run.
    ahead
        False: nothing is loaded before its router has decided.

    What saves most time of loads stays within the budget, beside room for the largest of the other
    branches, or for two; of these those are loaded ahead that are active in most runs, the rest on
    demand. They are kept in another memory, or in the file of the compiled model. Where all weights
    fit nothing is loaded. Raises, when the pass runs, RoutingError as `ChooseCapacities`, and
    InfeasibleError where a branch is larger than the budget.
    """

    def change(routed: Routed) -> Changes:
        return preload_changes(routed, budget_bytes, has_ahead=ahead)

    return _pass("PreloadWeights", profile, change)


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
        As of `SpeculateRoutes`.
    num_sizes
        As of `ChooseCapacities`.
    forced
        Rules that are not asked: see `dynamic/specialise.py`. Grouping is none of them: plans have
        branches side by side where their times say so.
    report
        Takes a line for each rule and router: rule, inputs, decision. None: they go to the logger
        `heteroplace`.

    Raises
    ------
    ClusterError
        The cluster file is wrong.
    RoutingError, InfeasibleError
        As of the others, when the pass runs; a rule is forced that cannot be carried out.
    """
    opened = cluster if cluster is None or isinstance(cluster, Cluster) else open_cluster(cluster)

    def change(routed: Routed) -> Changes:
        changes, choices = _specialised(routed, opened, times or {}, num_sizes, forced)
        for choice in choices:
            (report or _LOG.info)(choice.text())
        return changes

    return _pass("Specialise", profile, change)


def _pass(
    name: str, profile: Profile, change: Callable[[Routed], Changes]
) -> tvm.transform.ModulePass:
    @types_once()
    def transform(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        routed = routed_module(mod, profile)
        return routed.changed(change(routed)).mod

    return tvm.transform.module_pass(transform, opt_level=0, name=name)


def _specialised(
    routed: Routed,
    cluster: Cluster | None,
    times: Mapping[str, SpeculationTimes],
    num_sizes: int,
    forced: Mapping[str, bool] | None,
) -> tuple[Changes, tuple[RuleChoice, ...]]:
    memories = [] if cluster is None else memory_ids(cluster)
    sizes = [] if cluster is None else [cluster.memories[id].bytes for id in memories]
    room = sum(sizes) if sizes else None
    weights = {name: sum(use.weight_bytes for use in uses) for name, uses in routed.uses.items()}
    total = sum(weights[router.options.name] for router in routed.routers if router.parent is None)
    _check_forced(routed, len(memories), forced or {})
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
    choices = tuple(choice for choice in choices if choice.rule != GROUPING)
    chosen = {(choice.router, choice.rule) for choice in choices if choice.is_chosen}
    budget = int(MAX_ROOM_SHARE * min(sizes, default=0))
    changes: Changes = {}
    makers: dict[str, Callable[[], Changes]] = {
        CAPACITIES: lambda: capacity_changes(routed, num_sizes, "optimal"),
        PLACEMENT: lambda: {} if cluster is None else memory_changes(routed, cluster),
        SPECULATION: lambda: prediction_changes(routed, times),
        PRELOADING: lambda: preload_changes(routed, budget) if sizes else {},
    }
    judged = {
        PLACEMENT: ("memories", placed_routers(routed) if memories else []),
        SPECULATION: ("predict", predicted_routers(routed)),
        PRELOADING: ("preload", preloaded_routers(routed) if sizes else []),
    }
    for rule, (option, names) in judged.items():
        left = {each.router for each in choices if each.rule == rule and not each.is_forced}
        left -= {name for name, each in chosen if each == rule}
        for name, options in taken_back(routed, option, left.intersection(names)).items():
            changes.setdefault(name, {}).update(options)
    for rule, make in makers.items():
        if any(each == rule for _, each in chosen):
            for name, options in make().items():
                if (name, rule) in chosen:
                    changes.setdefault(name, {}).update(options)
    return changes, choices


def _check_forced(routed: Routed, num_memories: int, forced: Mapping[str, bool]) -> None:
    """Raise RoutingError if a rule is to be applied that has nothing to be applied to."""
    reasons = {GROUPING: "plans put branches side by side by their times, and no option says it"}
    if num_memories < 2:
        reasons[PLACEMENT] = "there are fewer than two memories (cluster=)"
    if not num_memories:
        reasons[PRELOADING] = "no cluster says how much room there is (cluster=)"
    if all(router.num_cells > 1 for router in routed.routers):
        reasons[SPECULATION] = "no router decides about a whole tensor"
    faults = [
        f"{rule!r} cannot be carried out: {reasons[rule]}"
        for rule, is_applied in forced.items()
        if is_applied and rule in reasons
    ]
    if faults:
        raise RoutingError(f"forced: {'; '.join(faults)}; leave it out")


@types_once()
def with_routes(
    mod: tvm.IRModule,
    params: Mapping[str, tvm.nd.NDArray] | None,
    routes: str | os.PathLike[str],
    weights_bytes: int | None,
) -> tuple[tvm.IRModule, RouteProfile]:
    """Bind the weights, and choose capacities, predictions and which weights stay by a file of
    route decisions, which are returned too.

    Raises
    ------
    RoutingError
        The file cannot be read or is of another model, or the module has no routers.
    """
    mod = without_branches(bound_module(mod, params))  # choices (`If`) are routers
    if not has_routers(mod):
        raise RoutingError(
            f"routes={os.fspath(routes)!r} is given, and the model has no routers; leave it out"
        )
    # The passes one by one would each compute the digest of all weights.
    routed = routed_module(mod, routes)
    routed = routed.changed(capacity_changes(routed, NUM_SIZES, "optimal"))
    routed = routed.changed(prediction_changes(routed, {}))
    if weights_bytes is not None:
        routed = routed.changed(preload_changes(routed, weights_bytes))
    return routed.mod, routed.profile
