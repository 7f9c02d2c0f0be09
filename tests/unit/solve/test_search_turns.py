"""A search in several turns: the pauses change nothing, and a plan that is given counts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import PlanSearch, SearchReport, Stall, search_plans
from heteroplace.native.list import heft
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve import Problem, SolveOptions
from heteroplace.solve.deadline import NEVER
from heteroplace.solve.search import initial_solutions
from heteroplace.solve.search.initial_solutions import InitialSolutions
from heteroplace.solve.search.search_solver import SearchRun
from tests.strategies import Instance, exact_cases, instances
from zoo.graphs.catalogue import get_instance, layered
from zoo.graphs.layered import Layered

AT_ONCE = Stall(share=1e-9, least_s=0.0)
"""Every round is a turn: some time has always passed since the last gain."""


def start_of(problem: Problem) -> NativePlan:
    return heft(problem.native, range(len(problem.cluster.devices)))


def in_turns(problem: Problem, num_evaluations: int) -> list[SearchReport]:
    search = PlanSearch(
        problem.native, [start_of(problem)], max_evaluations=num_evaluations, seed=3
    )
    reports = [search.run(60.0, stall=AT_ONCE)]
    while reports[-1].can_go_on:
        reports.append(search.run(60.0, stall=AT_ONCE))
    return reports


def at_once(problem: Problem, num_evaluations: int) -> SearchReport:
    return search_plans(
        problem.native,
        [start_of(problem)],
        max_evaluations=num_evaluations,
        time_limit_s=60.0,
        seed=3,
    )


@pytest.mark.parametrize("name", ["rwnn/er10x5", "rwnn/er10x5-wdep2"])
def test_a_search_that_stalls_after_each_round_finds_what_it_finds_at_once(name: str) -> None:
    problem = get_instance(name).build()
    reports, whole = in_turns(problem, 40_000), at_once(problem, 40_000)
    assert len(reports) > 2
    assert reports[-1].num_evaluations == whole.num_evaluations == 40_000
    assert reports[-1].native_plan.steps == whole.native_plan.steps
    assert reports[-1].bound_ns == whole.bound_ns


@pytest.mark.costly
@given(instances(is_memory_tight=True))
@exact_cases(20)
def test_turns_change_nothing_where_memory_is_tight(case: Instance) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    reports, whole = in_turns(problem, 3000), at_once(problem, 3000)
    assert reports[-1].native_plan.steps == whole.native_plan.steps


def test_later_turns_are_never_longer_and_time_without_gain_adds_up() -> None:
    reports = in_turns(layered(Layered(60), fill=0.2), 20_000)
    makespans = [report.native_plan.makespan_ns for report in reports]
    assert makespans == sorted(makespans, reverse=True)
    for before, after in pairwise(reports):
        if after.native_plan.makespan_ns == before.native_plan.makespan_ns:
            assert after.stalled_s > before.stalled_s


def test_a_turn_is_never_longer_than_a_plan_that_it_is_given() -> None:
    problem = get_instance("rwnn/er10x5-wdep2").build()
    best = at_once(problem, 40_000).native_plan
    best_ns = simulate_plan(problem.native, best).makespan_ns
    run = SearchRun(problem, [start_of(problem)], SolveOptions(iterations=40_000, threads=1))
    first = run.run(NEVER.within(60.0), 0, AT_ONCE)
    assert first.makespan_ns > best_ns
    assert first.can_go_on
    assert not run.knows(best)
    second = run.run(NEVER.within(60.0), 0, AT_ONCE, plans=[best])
    assert second.makespan_ns <= best_ns
    assert run.knows(best)


def test_devices_that_hold_nothing_are_given_up_when_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def hold_nothing(_problem: Problem, device: int) -> None:
        tried.append(device)

    monkeypatch.setattr(initial_solutions, "single_native_plan", hold_nothing)
    problem = get_instance("hub/40x500").build()
    names = [name.split()[0] for name, _ in InitialSolutions(problem).native_plans(0.0)]
    assert names == ["heft", "order-place"]
    assert len(tried) == 1
