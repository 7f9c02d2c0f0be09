"""Solver's result -> Placement: explained, with the figures that people compare it with."""

from __future__ import annotations

from heteroplace.model.check import check_plan
from heteroplace.model.placement import Placement
from heteroplace.solve.base import Problem, SolveResult
from heteroplace.solve.explain import explain
from heteroplace.solve.single import single_makespans


def make_placement(problem: Problem, result: SolveResult) -> Placement:
    """Check and explain the plan of `result`, and put all that belongs to it together.

    Raises
    ------
    PlanError
        The plan breaks a rule: a bug of the solver.
    """
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    check_plan(graph, cluster, costs, result.plan)
    return Placement(
        graph,
        cluster,
        costs,
        explain(problem, result.plan),
        result.objective_ns,
        result.bound_ns,
        tuple((name, objective) for name, objective, _ in result.candidates),
        tuple(single_makespans(problem).items()),
    )
