"""Each exact engine alone, from nothing, against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given

from heteroplace.solve import SolveOptions, get_solver, lower_bound
from heteroplace.solve.exact.formulate import formulate
from heteroplace.solve.exact.schedule import schedule_of_steps
from tests.exact_engines import Engine, every_engine, optimum
from tests.instances import problem_of
from tests.reference.brute_force import optimal_makespan
from tests.strategies import Instance, exact_cases, instances


@every_engine
@given(case=instances(max_tasks=5, has_modes=True))
@exact_cases(40)
def test_engine_equals_brute_force_in_every_mode(engine: Engine, case: Instance) -> None:
    expected = optimal_makespan(case.graph, case.cluster, case.costs)
    assert optimum(problem_of(case), engine) == expected


@every_engine
@given(case=instances(max_tasks=4, is_memory_tight=True, has_modes=True))
@exact_cases(40)
def test_engine_equals_brute_force_with_tight_memory(engine: Engine, case: Instance) -> None:
    expected = optimal_makespan(case.graph, case.cluster, case.costs, is_static=True)
    assert optimum(problem_of(case), engine) == expected


@pytest.mark.costly(5)
@every_engine
@given(case=instances(max_tasks=7, has_modes=True))
@exact_cases(30)
def test_a_known_plan_is_improved_or_proven(engine: Engine, case: Instance) -> None:
    problem = problem_of(case)
    heuristic = get_solver("heft").solve(problem, SolveOptions())
    bound = lower_bound(problem).ns
    formulation = formulate(problem, bound)
    end = engine(formulation, schedule_of_steps(formulation, heuristic.plan.steps))
    found = heuristic.objective_ns
    if end.schedule is not None:
        found = min(found, end.schedule.makespan_ns)
    assert bound <= end.bound_ns == found
    exact = get_solver("cpsat").solve(problem, SolveOptions(threads=1))
    assert exact.objective_ns == found
