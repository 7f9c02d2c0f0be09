"""Saved plans of routed networks: taken as they are, and judged as when they were found."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given

from heteroplace.errors import PlanError, RoutingError
from heteroplace.files.plan_file import plan_to_json, replayed_plan
from heteroplace.model.plan import Load, guard_of
from heteroplace.parts.routing.solve.preloaded import Preloading
from heteroplace.parts.routing.solve.routed_network import solve_routed
from heteroplace.parts.routing.solve.routed_replay import replay_routed
from heteroplace.solve.problem import SolveOptions
from tests.routed_plans import RoutedCase, routed_plans
from tests.strategies import exact_cases
from tests.unit.model.test_check_guards import ROWS, ROWS_PLAN, cluster, costs, plan_of


@pytest.mark.costly
@given(routed_plans())
@exact_cases(15)
def test_a_saved_plan_is_the_solution_again(case: RoutedCase) -> None:
    of = case.instance.graph, case.instance.cluster
    options = SolveOptions(time_limit_s=1)
    solved = solve_routed(*of, case.instance.costs, options, "heft")
    saved = replayed_plan(plan_to_json(solved.plan, *of), *of)
    found = replay_routed(*of, case.instance.costs, options, saved)
    assert found.plan.steps == solved.plan.steps
    assert found.bound_ns <= found.objective_ns
    # Copies of loads that guards need may be earlier than where the solver had them.
    assert found.objective_ns >= solved.bound_ns
    again = replay_routed(*of, case.instance.costs, options, found.plan)
    assert (again.plan, again.objective_ns) == (found.plan, found.objective_ns)


@given(routed_plans())
@exact_cases(15)
def test_any_plan_that_can_be_solved_for_is_taken_as_it_is(case: RoutedCase) -> None:
    found, steps = case.instance, case.plan.steps
    of = found.graph, found.cluster, found.costs, SolveOptions(time_limit_s=1), case.plan
    predicted = {
        guard.router for step in steps if (guard := guard_of(step)) and guard.when != "active"
    }
    holds = {found.graph.routers[router].name for router in predicted}
    if any(isinstance(step, Load) for step in steps):
        with pytest.raises(PlanError, match="while it runs, and such a plan is not taken"):
            replay_routed(*of)
    elif any(
        router.parent is not None and router.parent[0] in holds for router in found.graph.routers
    ):
        # Maybe another branch of that router is predicted.
        with contextlib.suppress(RoutingError):
            assert replay_routed(*of).plan.steps == steps
    else:
        assert replay_routed(*of).plan.steps == steps


def test_a_budget_for_weights_and_a_saved_plan_exclude_each_other() -> None:
    text = "\n".join(line for line in ROWS_PLAN.splitlines() if not line.startswith("load"))
    plan, weights = plan_of(ROWS, text), Preloading(10, (), (), (5,) * len(ROWS.tasks))
    asked = ROWS, cluster(), costs(ROWS), SolveOptions(time_limit_s=1), plan
    assert replay_routed(*asked).plan.steps == plan.steps
    with pytest.raises(PlanError, match="leave out plan_in, or the budget"):
        replay_routed(*asked, weights=weights)
