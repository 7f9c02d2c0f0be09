"""Solvers against brute force, on random small instances."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given

from heteroplace.errors import InfeasibleError, SolverError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve import Problem, SolveOptions, SolveResult, get_solver, lower_bound
from heteroplace.solve.exact import cpsat, moirai
from heteroplace.solve.exact.incumbent import EngineEnd, Incumbent
from tests.instances import diamond, problem_of
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


HEURISTICS = ("single", "heft", "search")


def found_by_heuristics(instance: Instance) -> list[bool]:
    """cpsat, moirai and auto find the optimum of brute force; no other solver is below it.

    Returns for each of `HEURISTICS` whether it found a plan; nothing if there is none.
    """
    optimum = optimal_makespan(instance.graph, instance.cluster, instance.costs)
    problem = Problem(instance.graph, instance.cluster, instance.costs)
    if optimum is None:
        for name in (*HEURISTICS, "cpsat", "moirai", "auto"):
            with pytest.raises(InfeasibleError):
                solve(instance, name)
        return []
    assert lower_bound(problem).ns <= optimum
    for name in ("cpsat", "moirai", "auto"):
        result = solve(instance, name)
        assert result.objective_ns == optimum
        assert result.status == "optimal"
    found = []
    for name in HEURISTICS:
        try:
            assert solve(instance, name).objective_ns >= optimum
            found.append(True)
        except InfeasibleError:
            found.append(False)
    return found


@pytest.mark.costly
@given(instances(max_tasks=5))
@exact_cases(60)
def test_solvers_against_brute_force(instance: Instance) -> None:
    assert found_by_heuristics(instance) == [True] * len(HEURISTICS)


def found_by_lifetime(instance: Instance) -> list[bool]:
    """Memory by lifetime is beyond the exact models, but no solver claims what is not so.

    Returns for each solver whether it found a plan; nothing if there is none.
    """
    graph, cluster, costs = instance.graph, instance.cluster, instance.costs
    optimum = optimal_makespan(graph, cluster, costs)
    static_optimum = optimal_makespan(graph, cluster, costs, is_static=True)
    assert optimum is None or lower_bound(Problem(graph, cluster, costs)).ns <= optimum
    found = []
    for name in ("heft", "search", "cpsat", "moirai", "auto", "lns", "split"):
        try:
            result = solve(instance, name)
        except InfeasibleError as error:
            assert optimum is None or isinstance(error, SolverLimitError)
            is_exact = name in ("cpsat", "moirai", "auto")
            assert static_optimum is None or not is_exact
            found.append(False)
            continue
        assert optimum is not None
        assert result.bound_ns <= optimum <= result.objective_ns
        if name in ("cpsat", "moirai", "auto") and static_optimum is not None:
            assert result.objective_ns <= static_optimum
        found.append(True)
    return found if optimum is not None else []


@pytest.mark.costly
def test_solvers_against_brute_force_with_tight_memory() -> None:
    found: list[bool] = []

    @given(instances(max_tasks=4, is_memory_tight=True))
    @exact_cases(60)
    def check(instance: Instance) -> None:
        found.extend(found_by_lifetime(instance))

    check()
    assert found
    assert sum(found) >= 0.95 * len(found), sum(found) / len(found)


@pytest.mark.parametrize(("name", "gives_up"), [("cpsat", cpsat), ("moirai", moirai)])
def test_an_engine_that_gives_up_leaves_the_plan_that_was_known(
    name: str, gives_up: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> EngineEnd:
        raise SolverError("the engine has an error of its own")

    of_module = {"cpsat": "solve_by_cpsat", "moirai": "solve_lazily"}
    monkeypatch.setattr(gives_up, of_module[name], fail)
    problem = problem_of(diamond())
    monkeypatch.setattr(gives_up, "find_incumbent", found_by_heft)
    result = get_solver(name).solve(problem, SMALL)
    check_plan(problem.graph, problem.cluster, problem.costs, result.plan)
    assert (name, None, "left out: the engine has an error of its own") in result.candidates
    monkeypatch.setattr(gives_up, "find_incumbent", lambda *_: Incumbent(None, 0))
    with pytest.raises(SolverError, match="error of its own"):
        get_solver(name).solve(problem, SMALL)


def found_by_heft(problem: Problem, *_: object) -> Incumbent:
    """A plan of which nothing is proven."""
    return Incumbent(get_solver("heft").solve(problem, SMALL).plan.steps, 0)
