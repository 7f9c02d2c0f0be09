"""A plan of a routed network and its decisions -> rows that it executes, bytes that it copies.

Both are exact for the decision of a run, and means over what a profile knows of the runs: the
executor counts the same (`Executor.copied_bytes`).
"""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Guard, Plan, Run
from heteroplace.model.routed.capacities import dropped_cells, padded_load
from heteroplace.model.routed.decision import Decision
from heteroplace.model.routed.route_profile import Profile, RouteProfile
from heteroplace.model.routed.routers import RouterFigures
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.dynamic.recorded_routes import as_profile
from heteroplace.parts.routing.report.routing_text import counted_text, routing_text
from heteroplace.report.tables import MAX_ROWS
from heteroplace.simulate.decisions import LoadShares, load_shares

Ways = dict[tuple[str, str], float]
"""Bytes by (name of the memory that they come from, of the one that they go to)."""


def copied_bytes(graph: TaskGraph, cluster: Cluster, plan: Plan, decision: Decision) -> Ways:
    """Return what the copies of a plan move in one run, exactly; loads of weights do not count."""
    ways: Ways = {}
    for step in plan.steps:
        if isinstance(step, Copy):
            share = 1.0
            if step.guard is not None:
                is_made = decision.makes(step.guard)
                share = _share(graph, step, decision.cells(graph, step.guard)) if is_made else 0.0
            _add(ways, graph, cluster, step, share)
    return ways


def mean_copied_bytes(
    graph: TaskGraph, cluster: Cluster, plan: Plan, profile: RouteProfile | None
) -> Ways:
    """Return what the copies of a plan move in a run on average, if predictions are right.

    Parameters
    ----------
    profile
        What is known of the decisions; None: all branches of a router are alike.

    Raises
    ------
    RoutingError
        The profile lacks a router.
    """
    shares = load_shares(graph, profile)
    ways: Ways = {}
    for step in plan.steps:
        if isinstance(step, Copy) and not (step.guard and step.guard.when == "missed"):
            share = 1.0
            if step.guard is not None:
                share = sum(
                    chance * _share(graph, step, _kept(graph, step.guard, load))
                    for load, chance in _shares_of(graph, shares, step.guard)
                    if load
                )
            _add(ways, graph, cluster, step, share)
    return ways


def router_figures(
    graph: TaskGraph, cluster: Cluster, plan: Plan, profile: RouteProfile | None
) -> tuple[RouterFigures, ...]:
    """Return what is executed of each router's branches; parameters as of `mean_copied_bytes`."""
    shares = load_shares(graph, profile)
    places: dict[tuple[int, int], set[int]] = {}
    for step in plan.steps:
        if isinstance(step, Run):
            for around in graph.branches[step.task][:1]:
                places.setdefault(around, set()).add(cluster.devices[step.device].memory)
    figures = []
    for number, router in enumerate(graph.routers):
        cells, rows, memories = [], [], []
        for branch in range(router.num_branches):
            of = shares[router.name, branch]
            capacities = router.capacities[branch]
            guard = Guard(number, branch)
            cells.append(sum(chance * _kept(graph, guard, load) for load, chance in of))
            rows.append(
                sum(chance * padded_load(load, capacities, router.overflow) for load, chance in of)
            )
            ids = sorted(places.get((number, branch), ()))
            memories.append(tuple(cluster.memories[memory].name for memory in ids))
        figures.append(RouterFigures(router, tuple(cells), tuple(rows), tuple(memories)))
    return tuple(figures)


def routed_plan_text(
    solution: Solution,
    profile: Profile | None = None,
    model_digest: str = "",
    max_rows: int = MAX_ROWS,
) -> str:
    """Return loads, padding and memories of branches, and the bytes between memories, as text.

    Parameters
    ----------
    profile
        Of the route decisions, or its file, or that of a recording; None: all branches of a router
        are alike.
    model_digest
        Of the model that the profile must be of.

    Raises
    ------
    RoutingError
        The profile is of another model, or its file is wrong.
    """
    profile = None if profile is None else as_profile(profile)
    if profile is not None:
        profile.check_model(model_digest)
    of = solution.graph, solution.cluster, solution.plan, profile
    assumption = "if all branches are alike" if profile is None else "of the profile"
    return routing_text(router_figures(*of), mean_copied_bytes(*of), assumption, max_rows)


def run_text(
    solution: Solution,
    profile: Profile | None,
    model_digest: str,
    copied: Mapping[tuple[str, str], int],
    hits: Mapping[str, tuple[int, int]],
) -> str:
    """Return `routed_plan_text` and what an executor has counted, as of `counted_text`."""
    planned = routed_plan_text(solution, profile, model_digest)
    return f"{planned}\n{counted_text(copied, hits)}"


def _shares_of(
    graph: TaskGraph, shares: Mapping[tuple[str, int], LoadShares], guard: Guard
) -> LoadShares:
    return shares[graph.routers[guard.router].name, guard.branch]


def _kept(graph: TaskGraph, guard: Guard, load: int) -> int:
    """The cells of a load that are not dropped."""
    router = graph.routers[guard.router]
    return load - dropped_cells(load, router.capacities[guard.branch], router.overflow)


def _share(graph: TaskGraph, step: Copy, cells: int) -> float:
    """The part of a tensor that a guarded copy moves: of rows those that hold cells."""
    assert step.guard is not None  # else it is all of it
    if graph.tensors[step.tensor].buffer is None:
        return 1.0
    return cells / graph.routers[step.guard.router].num_cells


def _add(ways: Ways, graph: TaskGraph, cluster: Cluster, step: Copy, share: float) -> None:
    way = cluster.memories[step.src].name, cluster.memories[step.dst].name
    ways[way] = ways.get(way, 0.0) + share * graph.tensors[step.tensor].bytes
