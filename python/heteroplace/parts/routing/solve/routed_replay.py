"""A saved plan of a routed network -> Solution: taken as it is, judged by an average run.

Objective, bound and reasons are those of `expected_view.py`, in which every task of a
branch runs, once, and nothing is guarded. The plan that a solver finds there has the copies of
loads that guards need in other places, so that its objective may differ by those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Load, Plan, Run, Step, guard_of
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.model.routed.speculation import Prediction
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import Place
from heteroplace.parts.routing.solve.expected_view import expected_view
from heteroplace.parts.routing.solve.planned_predictions import planned_predictions
from heteroplace.parts.routing.solve.preloaded import Preloading
from heteroplace.parts.routing.solve.routed_expectation import RoutedExpectation
from heteroplace.parts.routing.solve.speculated import speculated_view
from heteroplace.simulate.interference import Interference
from heteroplace.solve.network_solution import solve_network
from heteroplace.solve.problem import Problem, SolveOptions


def replay_routed(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    options: SolveOptions,
    plan: Plan,
    profile: RouteProfile | None = None,
    predictions: Sequence[Prediction] = (),
    weights: Preloading | None = None,
    interference: Callable[[], Interference] | None = None,
) -> Solution:
    """Return a saved plan as if a solver had found it now.

    Parameters
    ----------
    costs, profile
        As of `solve_routed`.
    predictions
        What is known of branches that are predicted; which are is what the plan says.
    weights
        Which weights have to fit into which room; None: all stay where they are read.
    interference
        As of `solve_routed`.

    Raises
    ------
    PlanError
        It breaks a rule of the network. It loads weights while it runs, or should: which of them
        fit is not what the bound knows of.
    RoutingError
        The profile lacks a router, or a branch is predicted that has routers in it.
    """
    loads = [step for step in plan.steps if isinstance(step, Load)]
    if loads:
        name = graph.tasks[loads[0].tasks[0]].name
        raise PlanError(
            f"the plan by {plan.origin!r} loads the weights of task {name!r} while it runs, and "
            f"such a plan is not taken from a file of its own: leave out plan_in, and the same "
            f"budget of weights gives one again; or give the solution or the compiled model"
        )
    if weights is not None:
        raise PlanError(
            f"there is a budget for the weights of branches, and the plan by {plan.origin!r} keeps "
            f"all of them: leave out plan_in, or the budget"
        )
    check_plan(graph, cluster, costs, plan)
    guards = [guard for step in plan.steps if (guard := guard_of(step)) is not None]
    predicted = {(guard.router, guard.branch) for guard in guards if guard.when == "predicted"}
    usable = [each for each in predictions if predicted.issuperset(_branches(graph, each))]
    view, expected = expected_view(graph, cluster, costs, profile, sorted(predicted))
    view = speculated_view(view, graph, sorted(predicted))
    problem = Problem(view, cluster, replace(expected, tasks=view.identities))
    expectation = RoutedExpectation.of(graph, cluster, costs, profile, usable, interference)
    solution = solve_network(
        problem,
        options,
        expectation.of_view(view),
        plan=_unguarded(plan, graph, view, cluster),
        run_time_of=expectation.run_time_of(lambda _: plan),
    )
    plan = replace(plan, reasons=solution.plan.reasons)
    gains = planned_predictions(graph, cluster, costs, plan, usable, profile)
    return replace(solution, graph=graph, costs=costs, plan=plan, predictions=gains)


def _branches(graph: TaskGraph, prediction: Prediction) -> set[tuple[int, int]]:
    return {(graph.router_ids[prediction.router], branch) for branch in prediction.branches}


def _unguarded(plan: Plan, graph: TaskGraph, view: TaskGraph, cluster: Cluster) -> Plan:
    """The plan as one of the expected view: without what is run again where a prediction was wrong,
    and without the copies of loads that nothing but a guard reads."""
    loads = {router.loads for router in graph.routers}
    steps: list[Step] = []
    read: set[Place] = set()
    for step in reversed(plan.steps):
        if isinstance(step, (Run, Copy)) and step.guard is not None:
            if step.guard.when == "missed":
                continue
            step = replace(step, guard=None)
        if isinstance(step, Copy):
            if step.tensor in loads and (step.tensor, step.dst) not in read:
                continue
            read.add((step.tensor, step.src))
        elif isinstance(step, Run):
            memory = cluster.devices[step.device].memory
            read |= {(tensor, memory) for tensor in view.task_inputs[step.task]}
        steps.append(step)
    return replace(plan, graph_digest=view.digest(), steps=tuple(reversed(steps)))
