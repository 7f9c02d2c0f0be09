"""Routed network + costs by capacity -> Solution: solved as what it is on average, then guarded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.route_profile import RouteProfile
from heteroplace.model.solution import Solution
from heteroplace.solve.network import solve_network
from heteroplace.solve.preloaded import Preloading, preloaded, preloading_view
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.routed import expected_view, guarded
from heteroplace.solve.speculated import speculated, speculated_view


def solve_routed(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    options: SolveOptions,
    solver: str = "auto",
    profile: RouteProfile | None = None,
    predicted: Collection[tuple[int, int]] = (),
    weights: Preloading | None = None,
) -> Solution:
    """Place a network with routers.

    Parameters
    ----------
    costs
        With the capacities of all branches among its batch sizes.
    profile
        How often branches have which loads; None: all branches of a router are alike.

    predicted
        (router id, branch) of those that are run before their routers have decided, if an executor
        is told so (`predict`).
    weights
        Which weights of branches stay under which budget; None: all do.

    Returns
    -------
    The solution with the guarded plan. Its times are those of an average run: of each task in a
    branch the mean over its loads.

    Raises
    ------
    SolverError, InfeasibleError, SolverLimitError, PlanError
        See `solve_network`.
    RoutingError
        The profile lacks a router; a branch cannot be predicted.
    """
    view, expected = expected_view(graph, cluster, costs, profile)
    view = speculated_view(view, graph, predicted)
    if weights is not None:
        view = preloading_view(view, graph, weights)
    expected = replace(expected, tasks=view.identities)
    found = solve_network(Problem(view, cluster, expected), options, solver=solver)
    plan = speculated(graph, cluster, guarded(graph, cluster, found.plan), predicted)
    if weights is not None:
        plan = preloaded(graph, cluster, plan, weights)
    check_plan(graph, cluster, costs, plan)
    return replace(found, graph=graph, costs=costs, plan=plan)
