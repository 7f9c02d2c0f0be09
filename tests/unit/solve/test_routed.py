"""Routed networks as solvers see them, and the guards of the plans that they find."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.errors import PlanError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.plan import Copy, Guard, Run, guard_of
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.registry import get_solver
from heteroplace.solve.routed import expected_view, guarded
from tests.routed_plans import RoutedCase, routed_plans
from tests.strategies import exact_cases, num_cases
from tests.unit.model.test_check_guards import ROWS, ROWS_PLAN, cluster, costs, plan_of


@given(routed_plans())
@exact_cases(20)
def test_plans_of_the_expected_view_are_plans_of_the_network(case: RoutedCase) -> None:
    found = case.instance
    view, table = expected_view(found.graph, found.cluster, found.costs, None)
    assert not view.routers and not view.buffers
    result = get_solver("heft").solve(Problem(view, found.cluster, table), SolveOptions())
    plan = guarded(found.graph, found.cluster, result.plan)
    check_plan(found.graph, found.cluster, found.costs, plan)
    for decision in case.decisions:
        simulate(found.graph, found.cluster, found.costs, plan, decision=decision)


@pytest.mark.costly
@given(routed_plans())
@num_cases(50)
def test_rows_have_their_mean_size_in_the_expected_view(case: RoutedCase) -> None:
    found = case.instance
    view, _ = expected_view(found.graph, found.cluster, found.costs, None)
    for before, now in zip(found.graph.tensors, view.tensors, strict=True):
        assert now.buffer is None
        assert now.bytes <= before.bytes
        assert before.buffer is not None or now.bytes == before.bytes


def test_guards_are_those_of_branches_and_their_rows() -> None:
    plan = plan_of(ROWS, ROWS_PLAN)
    bare = replace(
        plan,
        steps=tuple(
            replace(step, guard=None)
            for step in plan.steps
            if isinstance(step, (Run, Copy)) and "loads" not in str(step)
        ),
    )
    found = guarded(ROWS, cluster(), bare)
    check_plan(ROWS, cluster(), costs(ROWS), found)
    assert {guard_of(step) for step in found.steps} == {None, Guard(0, 0), Guard(0, 1)}
    with pytest.raises(PlanError, match="guarded already"):
        guarded(ROWS, cluster(), found)


def test_solvers_refuse_routers_by_name() -> None:
    with pytest.raises(SolverError, match="has the router 'r'"):
        Problem(ROWS, cluster(), costs(ROWS))
