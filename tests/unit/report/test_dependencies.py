"""The critical path of a timeline, and which steps hand data to which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from heteroplace.model.plan import Plan
from heteroplace.model.routed.decision import Decision
from heteroplace.model.timeline import Timeline
from heteroplace.report.dependencies import critical_path, critical_shares, data_pairs
from heteroplace.simulate.simulator import simulate
from tests.explicit_plans import explicit_plans
from tests.routed_plans import RoutedCase, routed_plans
from tests.strategies import Instance, exact_cases, instances_with_plan


def check_path(case: Instance, plan: Plan, decision: Decision | None = None) -> None:
    timeline = simulate(case.graph, case.cluster, case.costs, plan, decision=decision)
    path = critical_path(case.graph, case.cluster, plan, timeline)
    assert all(one.pause_ns == 0 for one in path)
    assert sum(ns for _, ns in critical_shares(path, timeline)) == timeline.makespan_ns
    steps = [one.step for one in path]
    assert steps == sorted(set(steps))


@given(instances_with_plan(max_tasks=8, max_items=3, has_modes=True))
@exact_cases(60)
def test_a_critical_path_has_no_pauses_and_adds_up_to_the_makespan(
    case: tuple[Instance, Plan],
) -> None:
    check_path(*case)


@given(explicit_plans())
@exact_cases(10)
def test_so_has_one_of_collectives_and_sums(case: tuple[Instance, Plan]) -> None:
    check_path(*case)


@pytest.mark.costly(4)
@given(routed_plans())
@exact_cases(10)
def test_so_has_one_past_steps_that_a_router_skips(case: RoutedCase) -> None:
    for decision in (None, *case.decisions):
        check_path(case.instance, case.plan, decision)


def test_it_says_what_each_step_waited_for(graph, cluster, plan, predicted: Timeline) -> None:
    path = critical_path(graph, cluster, plan, predicted)
    found = [(one.step, one.waits_for) for one in path]
    assert found == [(0, ""), (1, "data"), (2, "data"), (4, "data")]
    assert critical_shares(path, predicted) == (
        ("h2d", 2100),
        ("cpu", 1000),
        ("gpu", 500),
        ("d2h", 400),
    )


def test_pauses_of_a_measured_run_are_told(graph, cluster, plan, measured: Timeline) -> None:
    path = critical_path(graph, cluster, plan, measured)
    assert [(one.step, one.pause_ns) for one in path] == [(0, 10), (3, 0)]
    assert critical_shares(path, measured)[-1] == ("", 10)


def test_an_empty_timeline_has_no_critical_path(graph, cluster, plan, measured: Timeline) -> None:
    assert critical_path(graph, cluster, plan, replace(measured, spans=())) == ()


def test_data_goes_from_maker_to_copy_and_from_copy_to_reader(graph, cluster, plan) -> None:
    assert data_pairs(graph, cluster, plan) == ((0, 1), (1, 2), (2, 4))
