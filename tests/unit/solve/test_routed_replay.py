"""Saved plans of routed networks: taken as they are, and judged as when they were found."""

from __future__ import annotations

import pytest
from hypothesis import given

from heteroplace.errors import PlanError
from heteroplace.files.plan import plan_to_json, replayed_plan
from heteroplace.model.plan import Load
from heteroplace.solve.problem import SolveOptions
from heteroplace.solve.routed_network import solve_routed
from heteroplace.solve.routed_replay import replay_routed
from tests.routed_plans import RoutedCase, routed_plans
from tests.strategies import exact_cases


@given(routed_plans())
@exact_cases(15)
def test_a_saved_plan_is_the_solution_again(case: RoutedCase) -> None:
    of = case.instance.graph, case.instance.cluster
    options = SolveOptions(time_limit_s=1)
    solved = solve_routed(*of, case.instance.costs, options, "heft")
    saved = replayed_plan(plan_to_json(solved.plan, *of), *of)
    found = replay_routed(*of, case.instance.costs, options, saved)
    assert found.plan.steps == solved.plan.steps
    assert found.objective_ns == solved.objective_ns
    assert found.bound_ns <= found.objective_ns


@given(routed_plans())
@exact_cases(15)
def test_any_valid_plan_is_taken_as_it_is(case: RoutedCase) -> None:
    found = case.instance
    if any(isinstance(step, Load) for step in case.plan.steps):
        with pytest.raises(PlanError, match="while it runs, and such a plan is not taken"):
            replay_routed(
                found.graph, found.cluster, found.costs, SolveOptions(time_limit_s=1), case.plan
            )
        return
    solution = replay_routed(
        found.graph, found.cluster, found.costs, SolveOptions(time_limit_s=1), case.plan
    )
    assert solution.plan.steps == case.plan.steps
