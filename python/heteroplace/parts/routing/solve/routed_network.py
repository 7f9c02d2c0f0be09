"""Routed network + costs by capacity -> Solution: solved as what it is on average, then guarded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.model.routed.speculation import Prediction
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_ns
from heteroplace.parts.routing.solve.expected_view import expected_view, guarded
from heteroplace.parts.routing.solve.planned_predictions import planned_predictions
from heteroplace.parts.routing.solve.preloaded import Preloading, preloaded, preloading_view
from heteroplace.parts.routing.solve.routed_expectation import (
    RoutedExpectation,
    assumed_profile,
    mean_ns,
)
from heteroplace.parts.routing.solve.speculated import behind_routers, speculated, speculated_view
from heteroplace.simulate.interference import Interference
from heteroplace.solve.network_solution import solve_network
from heteroplace.solve.problem import Problem, SolveOptions

_LOG = logging.getLogger("heteroplace")


def solve_routed(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    options: SolveOptions,
    solver: str = "auto",
    profile: RouteProfile | None = None,
    predictions: Sequence[Prediction] = (),
    weights: Preloading | None = None,
    interference: Callable[[], Interference] | None = None,
) -> Solution:
    """Place a network with routers.

    Parameters
    ----------
    costs
        With the capacities of all branches among its batch sizes.
    profile
        How often branches have which loads; None: all branches of a router are alike.
    predictions
        Branches that may be run before their routers have decided. As far as it is known how often
        they are right, those are left out that do not pay by the costs of the plan, and all where
        a plan without them takes less on average: what is begun early stands in the way of others.
        Up to three plans share the time limit then.
    weights
        Which weights of branches stay under which budget; None: all do.
    interference
        Measures how the tasks slow each other, as of `solve_network`; what a plan is expected to
        take is the mean over decisions that the profile makes likely.

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
    chosen = [each for each in predictions if each.probability is not None]
    if not chosen:
        arguments = graph, cluster, costs, options, solver, profile, weights, interference
        return _solved(*arguments, predictions)
    options = replace(options, time_limit_s=options.part_s(1 / 3))
    arguments = graph, cluster, costs, options, solver, profile, weights, interference
    without = _solved(*arguments, [each for each in predictions if each not in chosen])
    try:
        solution = _solved(*arguments, predictions)
        useful = [each.prediction for each in solution.predictions if each.is_on]
        for planned in solution.predictions:
            _LOG.info("%s", planned.text())
        if not any(each in chosen for each in useful):
            return without
        if len(useful) < len(predictions):
            solution = _solved(*arguments, useful)
    except (InfeasibleError, SolverLimitError) as err:
        _LOG.info("no router is predicted, as a plan was found only without: %s", err)
        return without
    likely = assumed_profile(graph, predictions) if profile is None else profile
    with_ns, without_ns = mean_ns(solution, likely), mean_ns(without, likely)
    pays = with_ns < without_ns
    _LOG.info(
        "all of them together: a run takes %s on average, %s without: %s",
        *(format_ns(with_ns), format_ns(without_ns), "yes" if pays else "no"),
    )
    return solution if pays else without


def _solved(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    options: SolveOptions,
    solver: str,
    profile: RouteProfile | None,
    weights: Preloading | None,
    interference: Callable[[], Interference] | None,
    predictions: Sequence[Prediction],
) -> Solution:
    """The solution with all these predictions, and what they gain."""
    predicted = [
        (graph.router_ids[each.router], branch) for each in predictions for branch in each.branches
    ]
    view, expected = expected_view(graph, cluster, costs, profile, predicted)
    view = speculated_view(view, graph, predicted)
    if weights is not None:
        view = preloading_view(view, graph, weights)
    expected = replace(expected, tasks=view.identities)

    def routed(plan: Plan) -> Plan:
        plan = behind_routers(view, graph, cluster, plan, predicted)
        plan = speculated(graph, cluster, guarded(graph, cluster, plan), predicted)
        return plan if weights is None else preloaded(graph, cluster, plan, weights)

    expectation = RoutedExpectation.of(graph, cluster, costs, profile, predictions, interference)
    solution = solve_network(
        Problem(view, cluster, expected),
        options,
        expectation.of_view(view),
        solver=solver,
        run_time_of=expectation.run_time_of(routed),
    )
    plan = routed(solution.plan)
    check_plan(graph, cluster, costs, plan)
    gains = planned_predictions(graph, cluster, costs, plan, predictions, profile)
    return replace(solution, graph=graph, costs=costs, plan=plan, predictions=gains)
