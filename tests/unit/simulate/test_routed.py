"""Timelines of routed plans: one for each decision, what they hold, and the mean over decisions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import MissingCostError, PlanError, RoutingError
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.memory_use.live_memory import LivePeak, held_bytes, live_peaks
from heteroplace.model.memory_use.memory import plan_memory_use
from heteroplace.model.plan import Guard, Load, Plan, Run, guard_of
from heteroplace.model.routed.decision import decision_of
from heteroplace.model.routed.route_profile import RouteProfile, RouteRecord, RouterProfile
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.simulate import simulate_steps
from heteroplace.simulate.decisions import (
    decisions_of_records,
    expected_ns,
    expected_table,
    full_table,
    load_shares,
    sampled_decisions,
    typical_capacity,
)
from heteroplace.simulate.expect import expect, expect_alone, expect_decisions
from heteroplace.simulate.interference import no_interference
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import throughput_ns
from tests.instances import cpu
from tests.reference.live_memory import reference_peaks
from tests.reference.simulator import is_made, reference_times
from tests.routed_plans import RoutedCase, layer_graph, random_routed_plan, routed_plans
from tests.strategies import exact_cases, num_cases
from tests.unit.model.test_check_guards import ROWS, ROWS_PLAN, cluster, costs, plan_of

LAYER = layer_graph(capacities=((1, 2, 6), (2, 4)))
PROFILE = RouteProfile(
    "model",
    (
        RouterProfile(
            *("r", 6, 2, 4),
            loads=(((0, 1), (1, 2), (6, 1)), ((0, 2), (5, 2))),
            active_sets=(((0,), 2), ((0, 1), 1), ((1,), 1)),
        ),
    ),
)
WITHOUT_RUNS = replace(PROFILE, routers=(RouterProfile("r", 6, 2, 0, ((), ()), ()),))


@pytest.mark.costly(4)
@given(routed_plans())
@num_cases(300)
def test_each_decision_has_the_timeline_and_the_memory_of_the_references(case: RoutedCase) -> None:
    found, plan = case.instance, case.plan
    whole = found.graph, found.cluster
    for decision in (None, *case.decisions):
        expected = reference_times(*whole, found.costs, plan, decision)
        timeline = simulate(*whole, found.costs, plan, decision=decision)
        for span in timeline.spans:
            assert (span.start_ns, span.finish_ns) == expected[span.step]
        made = {
            index
            for index, step in enumerate(plan.steps)
            if decision is None or guard_of(step) is None or is_made(guard_of(step), decision)
        }
        assert {span.step for span in timeline.spans} == made
        assert timeline.makespan_ns == max(finish for _, finish in expected)
        peaks = zip(timeline.peak_bytes, timeline.peaks, strict=True)
        assert [(size, peak.time_ns, peak.step) for size, peak in peaks] == reference_peaks(
            *whole, plan, expected
        )
        assert timeline.used_bytes == plan_memory_use(*whole, plan)


def test_in_some_of_these_plans_a_load_waits_for_its_place() -> None:
    random, num_waiting = Random(0), 0
    for _ in range(40):
        case = random_routed_plan(random)
        found = case.instance
        apart = replace(
            case.plan,
            steps=tuple(
                replace(step, place=None) if isinstance(step, Load) else step
                for step in case.plan.steps
            ),
        )
        times = [
            reference_times(found.graph, found.cluster, found.costs, plan)
            for plan in (case.plan, apart)
        ]
        num_waiting += times[0] != times[1]
    assert num_waiting >= 4


@given(routed_plans())
@exact_cases(100)
def test_python_and_core_agree_about_memory(case: RoutedCase) -> None:
    found, plan = case.instance, case.plan
    full = full_table(found.graph, found.cluster, found.costs)
    times = simulate_steps(NativeProblem(found.graph, found.cluster, full), plan.steps)
    peaks = live_peaks(found.graph, found.cluster, found.costs, plan)
    steps = [None if step < 0 else step for step in times.peak_step]
    assert peaks == tuple(map(LivePeak, times.peak_bytes, steps))
    assert times.held_bytes == tuple(held_bytes(found.graph, found.cluster, plan))
    assert all(peak <= used for peak, used in zip(times.peak_bytes, times.used_bytes, strict=True))


@pytest.mark.costly(6)
@given(routed_plans())
@num_cases(50)
def test_what_is_expected_without_disturbance_is_what_is_simulated(case: RoutedCase) -> None:
    found, plan = case.instance, case.plan
    expectation = expect_alone(found.graph, found.cluster, found.costs, plan)
    simulated = simulate(found.graph, found.cluster, found.costs, plan)
    assert expectation.makespan_ns == simulated.makespan_ns
    assert expectation.timeline.spans == simulated.spans
    quiet = no_interference(found.graph, found.cluster)
    for decision in case.decisions:
        timeline = simulate(found.graph, found.cluster, found.costs, plan, decision=decision)
        told = expect(*(found.graph, found.cluster, found.costs, plan, quiet, 1), decision=decision)
        assert told.timeline.spans == timeline.spans
    with pytest.raises(PlanError, match="steady states make every step"):
        throughput_ns(found.graph, found.cluster, found.costs, plan)


def test_a_branch_runs_at_the_capacities_that_hold_its_load() -> None:
    table = build_table(
        LAYER, cluster(), lambda _t, _d, rows: Cost.given(10 * rows + 1), batches=(1, 2, 4, 6)
    )
    plan = plan_of(LAYER, ROWS_PLAN)
    lengths = {}
    for loads in ((0, 0), (3, 2), (6, 6)):
        timeline = simulate(
            LAYER, cluster(), table, plan, decision=decision_of(LAYER, {"r": loads})
        )
        times = timeline.step_times
        lengths[loads] = [
            None if index not in times else times[index][1] - times[index][0]
            for index in (6, 8, 2, 4)
        ]
    # Branch 1 of 6 cells: 4 rows, then 2; its rows have 8 bytes at 1 byte a ns, its weights 6.
    assert lengths == {
        (0, 0): [None] * 4,
        (3, 2): [61, 21, 16, 6],
        (6, 6): [61, 41 + 21, 48, 6],
    }


def test_skipped_steps_take_no_time_and_hold_nothing_up() -> None:
    plan = plan_of(ROWS, ROWS_PLAN)
    idle = simulate(ROWS, cluster(), costs(ROWS), plan, decision=decision_of(ROWS, {"r": (0, 0)}))
    # The router, what sends, the copy of the loads, the weights of r.0.0 on the same channel, join.
    assert idle.makespan_ns == 3 + 3 + 8 + 5 + 3
    busy = simulate(ROWS, cluster(), costs(ROWS), plan, decision=decision_of(ROWS, {"r": (6, 6)}))
    assert busy.makespan_ns > idle.makespan_ns


@pytest.mark.parametrize(
    ("loads", "predicted", "fault"),
    [
        ({}, {}, "no loads are given for router 'r'"),
        ({"r": (1, 1), "q": (1,)}, {}, "has no router 'q'; there are: r"),
        ({"r": (1, 1, 1)}, {}, "expected one for each of its 2 branches"),
        ({"r": (-1, 1)}, {}, "expected 0 to 6 cells in each branch"),
        ({"r": (7, 1)}, {}, "expected 0 to 6 cells in each branch"),
        ({"r": (1, 1)}, {"r": (2,)}, "it has 0 to 1"),
        ({"r": (1, 1)}, {"q": (0,)}, "has no router 'q'"),
    ],
)
def test_impossible_decisions_are_refused(
    loads: dict[str, tuple[int, ...]], predicted: dict[str, tuple[int, ...]], fault: str
) -> None:
    with pytest.raises(RoutingError, match=fault):
        decision_of(LAYER, loads, predicted)


def test_loads_beyond_what_a_router_sends_are_refused() -> None:
    router = LAYER.routers[0]
    one = replace(LAYER, routers=(replace(router, top_k=1),))
    with pytest.raises(RoutingError, match="expected at most 6 together"):
        decision_of(one, {"r": (4, 3)})
    strict = replace(LAYER, routers=(replace(router, overflow="error"),))
    with pytest.raises(RoutingError, match="branch 1 holds at most 4"):
        decision_of(strict, {"r": (6, 5)})


@pytest.mark.costly
@given(routed_plans())
@num_cases(50)
def test_expected_times_are_means_over_records(case: RoutedCase) -> None:
    found, plan = case.instance, case.plan
    records = [
        RouteRecord(run, router.name, decision.loads[index])
        for run, decision in enumerate(case.decisions)
        for index, router in enumerate(found.graph.routers)
    ]
    decisions = decisions_of_records(found.graph, records)
    assert [one.loads for one in decisions] == [one.loads for one in case.decisions]
    whole = found.graph, found.cluster, found.costs, plan
    spans = [simulate(*whole, decision=one).makespan_ns for one in case.decisions]
    assert expected_ns(*whole, case.decisions) <= sum(spans) / len(spans)
    # What is wrongly predicted may be left out, once its router has decided.
    right = [
        (one, span)
        for one, span in zip(case.decisions, spans, strict=True)
        if all(
            one.loads[router][branch]
            for router, branches in enumerate(one.predicted)
            for branch in branches
        )
    ]
    if right:
        mean = sum(span for _, span in right) / len(right)
        assert expected_ns(*whole, [one for one, _ in right]) == mean


@pytest.mark.costly
@given(routed_plans())
@num_cases(100)
def test_the_run_time_of_decisions_is_their_mean_where_nothing_disturbs(case: RoutedCase) -> None:
    found, plan = case.instance, case.plan
    whole = found.graph, found.cluster, found.costs, plan
    quiet = no_interference(found.graph, found.cluster)
    told = expect_decisions(*whole, quiet, case.decisions)
    assert told.expected_ns == round(expected_ns(*whole, case.decisions))
    ends = [expected_ns(*whole, [decision]) for decision in case.decisions]
    assert min(ends) <= told.low_ns <= told.high_ns <= max(ends)


def test_of_rows_in_another_cache_as_many_are_fetched_as_there_are() -> None:
    machine = cpu()
    table = build_table(LAYER, machine, lambda _t, _d, _r: Cost.given(1000), batches=(1, 2, 4, 6))
    runs = [
        Run(task, 1, guard=Guard(*around[0])) if around else Run(task, 0)
        for task, around in enumerate(LAYER.branches)
    ]
    plan = Plan(LAYER.digest(), machine.digest(), tuple(runs), "by hand")
    quiet = no_interference(LAYER, machine)
    slow = replace(quiet, fetch_ns_per_byte=100.0)

    def slower_ns(loads: tuple[int, int]) -> int:
        decisions = [decision_of(LAYER, {"r": loads})]
        of = LAYER, machine, table, plan
        told = [expect_decisions(*of, known, decisions).expected_ns for known in (slow, quiet)]
        return told[0] - told[1]

    # Rows of 8 bytes go to the core of the branches and back; nothing runs beside.
    assert slower_ns((3, 0)) - slower_ns((1, 0)) == 100 * 2 * 2 * 8
    assert slower_ns((3, 4)) - slower_ns((1, 1)) == 100 * 5 * 2 * 8


def test_no_decisions_have_no_mean() -> None:
    with pytest.raises(RoutingError, match="expected at least one"):
        expected_ns(ROWS, cluster(), costs(ROWS), plan_of(ROWS, ROWS_PLAN), [])


def test_expected_table_weighs_padded_loads() -> None:
    table = build_table(
        LAYER, cluster(), lambda _t, _d, rows: Cost.given(10 * rows), batches=(1, 2, 4, 6)
    )
    expected = expected_table(LAYER, cluster(), table, PROFILE)
    by_name = {task.name: expected.run_ns(i, 0) for i, task in enumerate(LAYER.tasks)}
    # Loads 0, 1, 1, 6 at capacities 1 and 6; 0, 0, 5, 5 as 4 rows and then 2.
    assert by_name["r.0.0"] == (10 + 10 + 60) / 4
    assert by_name["r.1.1"] == 2 * 60 / 4
    assert by_name["r.join"] == 10
    even = expected_table(LAYER, cluster(), table, None)
    assert even.run_ns(LAYER.tasks.index(LAYER.tasks[2]), 0) == 60
    without = build_table(LAYER, cluster(), lambda *_: Cost.given(1))
    with pytest.raises(MissingCostError, match="no times for"):
        expected_table(LAYER, cluster(), without, PROFILE)


def test_a_branch_that_was_never_taken_still_cannot_run_where_it_cannot() -> None:
    def cost(task: int, device: int, rows: int = 1) -> Cost:
        is_unable = LAYER.tasks[task].branch == ("r", 1) and device == 0
        return Cost.unsupported("no such kernel") if is_unable else Cost.given(rows)

    table = build_table(LAYER, cluster(), cost, batches=(1, 2, 4, 6))
    idle = RouterProfile("r", 6, 2, 4, (((1, 4),), ((0, 4),)), (((0,), 4),))
    expected = expected_table(LAYER, cluster(), table, RouteProfile("", (idle,)))
    unable = [number for number, task in enumerate(LAYER.tasks) if task.branch == ("r", 1)]
    assert unable
    assert {expected.run_ns(task, 0) for task in unable} == {None}
    assert {expected.run_ns(task, 1) for task in unable} == {0}


def test_the_typical_capacity_is_the_median_of_those_that_run() -> None:
    # Of branch 0 loads 1, 1, 6 at 1, 1, 6; of branch 1 twice 5 rows, at most 4 at once.
    assert typical_capacity(LAYER, PROFILE) == 4
    # 6 cells in both branches; of the second one at most 4 rows at once.
    assert typical_capacity(LAYER, None) == 4


def test_sampled_decisions_follow_the_profile() -> None:
    found = sampled_decisions(LAYER, PROFILE, 400, seed=7)
    assert found == sampled_decisions(LAYER, PROFILE, 400, seed=7)
    assert {one.loads[0] for one in found} == {(1, 0), (6, 0), (1, 5), (6, 5), (0, 5)}
    share = sum(one.loads[0][1] == 5 for one in found) / len(found)
    assert abs(share - 0.5) < 0.1
    other = replace(PROFILE, routers=(replace(PROFILE.routers[0], name="q"),))
    with pytest.raises(RoutingError, match="has no router 'r'"):
        sampled_decisions(LAYER, other, 1, seed=0)
    with pytest.raises(RoutingError, match="has no runs of router 'r'"):
        sampled_decisions(LAYER, WITHOUT_RUNS, 1, seed=0)


def test_nothing_is_expected_of_a_router_without_runs() -> None:
    table = build_table(LAYER, cluster(), lambda *_: Cost.given(10), batches=(1, 2, 4, 6))
    with pytest.raises(RoutingError, match="has no runs of router 'r', which is reached"):
        expected_table(LAYER, cluster(), table, WITHOUT_RUNS)
    with pytest.raises(RoutingError, match="has no runs of router 'r'"):
        load_shares(LAYER, WITHOUT_RUNS)


def test_a_router_that_is_never_reached_needs_no_runs() -> None:
    inner = replace(LAYER.routers[0], name="s", parent=("r", 1))
    nested = replace(LAYER, routers=(*LAYER.routers, inner))
    never = RouterProfile("r", 6, 2, 4, (((1, 4),), ((0, 4),)), (((0,), 4),))
    none = RouterProfile("s", 6, 2, 0, ((), ()), ())
    assert load_shares(nested, replace(PROFILE, routers=(never, none)))["s", 0] == ()
    with pytest.raises(RoutingError, match="has no runs of router 's'"):
        load_shares(nested, replace(PROFILE, routers=(*PROFILE.routers, none)))
