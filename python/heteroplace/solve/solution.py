"""Solver's result -> Solution: explained, with the figures that people compare it with."""

from __future__ import annotations

from heteroplace.model.check import check_plan
from heteroplace.model.solution import RunTime, Solution
from heteroplace.simulate.expect import Expectation
from heteroplace.solve.explain import explain
from heteroplace.solve.list.single import single_makespans
from heteroplace.solve.problem import Problem, SolveResult


def make_solution(
    problem: Problem, result: SolveResult, expected: Expectation | None = None
) -> Solution:
    """Check and explain the plan of `result`, and put all that belongs to it together.

    `expected` is the run time of that plan with interference, if that was measured.

    Raises
    ------
    PlanError
        The plan breaks a rule: a bug of the solver.
    """
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    check_plan(graph, cluster, costs, result.plan)
    return Solution(
        graph,
        cluster,
        costs,
        explain(problem, result.plan),
        result.objective_ns,
        result.bound_ns,
        tuple((name, objective) for name, objective, _ in result.candidates),
        tuple(single_makespans(problem).items()),
        None
        if expected is None
        else RunTime(expected.makespan_ns, expected.low_ns, expected.high_ns),
    )
