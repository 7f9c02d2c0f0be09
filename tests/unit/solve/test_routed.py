"""Routed networks as solvers see them, and the guards of the plans that they find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from heteroplace.errors import PlanError, SolverError
from heteroplace.model.check import check_plan
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.plan import Copy, Guard, Run, guard_of
from heteroplace.model.routed.route_profile import RouteProfile, RouterProfile
from heteroplace.model.solution import Solution
from heteroplace.parts.routing.solve.expected_view import expected_view, guarded
from heteroplace.parts.routing.solve.routed_network import solve_routed
from heteroplace.simulate.interference import Interference, no_interference
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.solve.solvers import get_solver
from tests.instances import cpu
from tests.routed_plans import RoutedCase, layer_graph, routed_plans
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


def test_several_devices_are_used_where_the_mean_over_decisions_gains() -> None:
    graph, machine = layer_graph(capacities=((6,), (6,))), cpu()
    machine = replace(machine, devices=machine.devices[:2])
    lengths = {task.name: 1000 if task.branch else 10 for task in graph.tasks}
    table = build_table(
        graph,
        machine,
        lambda task, _d, _r: Cost.measured(lengths[graph.tasks[task].name]),
        batches=(1, 6),
    )
    options = SolveOptions(time_limit_s=5.0)
    quiet = no_interference(graph, machine)
    # In ten runs: three cells in each branch; or six in either.
    both = RouterProfile("r", 6, 2, 10, (((3, 10),),) * 2, (((0, 1), 10),))
    either = RouterProfile("r", 6, 2, 10, (((0, 5), (6, 5)),) * 2, (((0,), 5), ((1,), 5)))

    def solved(habit: RouterProfile, known: Interference | None) -> Solution:
        profile = RouteProfile("model", (habit,))
        ask = None if known is None else (lambda: known)
        return solve_routed(graph, machine, table, options, profile=profile, interference=ask)

    together = solved(both, quiet)
    assert len(together.devices_used) == 2
    assert together.expected is not None
    assert together.expected.expected_ns == pytest.approx(2030, rel=0.02)
    # On two cores no run of one branch is shorter than on one, as the average run would have it.
    assert len(solved(either, quiet).devices_used) == 1
    assert len(solved(either, None).devices_used) == 2
    # Nor where each core is slowed by the other.
    slow = replace(quiet, slowdown=np.full(quiet.slowdown.shape, 2.5))
    assert len(solved(both, slow).devices_used) == 1
