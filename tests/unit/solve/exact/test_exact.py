"""Solvers against brute force, on random small instances."""

from __future__ import annotations

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver, lower_bound
from tests.reference.brute_force import optimal_makespan
from tests.strategies import Instance, exact_cases, instances

SMALL = SolveOptions(iterations=3000, threads=1, time_limit_s=20, min_gain_ratio=0)


def solve(instance: Instance, name: str) -> SolveResult:
    """Solve and judge the plan."""
    problem = Problem(instance.graph, instance.cluster, instance.costs)
    result = get_solver(name).solve(problem, SMALL)
    check_plan(instance.graph, instance.cluster, instance.costs, result.plan)
    assert result.bound_ns <= result.objective_ns
    assert result.objective_ns == simulate_steps(problem.native, result.plan.steps).makespan_ns
    return result


def check_all_solvers(instance: Instance) -> None:
    """cpsat, moirai and auto find the optimum of brute force; no other solver is below it."""
    optimum = optimal_makespan(instance.graph, instance.cluster, instance.costs)
    problem = Problem(instance.graph, instance.cluster, instance.costs)
    if optimum is None:
        for name in ("single", "heft", "search", "cpsat", "moirai", "auto"):
            with pytest.raises(InfeasibleError):
                solve(instance, name)
        return
    assert lower_bound(problem).ns <= optimum
    for name in ("cpsat", "moirai", "auto"):
        result = solve(instance, name)
        assert result.objective_ns == optimum
        assert result.status == "optimal"
    for name in ("single", "heft", "search"):
        try:
            assert solve(instance, name).objective_ns >= optimum
        except InfeasibleError:
            assert name == "single" or any(m.bytes < 1000 for m in instance.cluster.memories)


@given(instances(max_tasks=5))
@exact_cases(60)
def test_solvers_against_brute_force(instance: Instance) -> None:
    check_all_solvers(instance)


@given(instances(max_tasks=4, is_memory_tight=True))
@exact_cases(60)
def test_solvers_against_brute_force_with_tight_memory(instance: Instance) -> None:
    """Memory by lifetime is beyond the exact models; but they claim nothing that is not so."""
    graph, cluster, costs = instance.graph, instance.cluster, instance.costs
    problem = Problem(graph, cluster, costs)
    optimum = optimal_makespan(graph, cluster, costs)
    static_optimum = optimal_makespan(graph, cluster, costs, is_static=True)
    for name in ("heft", "search", "cpsat", "moirai", "auto", "lns", "split"):
        try:
            result = solve(instance, name)
        except SolverLimitError:
            assert static_optimum is None or name in ("heft", "search", "lns")
            continue
        except InfeasibleError:
            assert optimum is None
            continue
        assert optimum is not None
        assert result.bound_ns <= optimum <= result.objective_ns
        if name in ("cpsat", "moirai", "auto") and static_optimum is not None:
            assert result.objective_ns <= static_optimum
    assert optimum is None or lower_bound(problem).ns <= optimum
