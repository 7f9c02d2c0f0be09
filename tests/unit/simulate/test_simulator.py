"""The core's simulator against the references, its properties, and its errors."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import CONGESTION_MODES, Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.memory_use.live_memory import LivePeak, live_peaks
from heteroplace.model.memory_use.memory import memory_use, plan_memory_use
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.step_values import occupied
from heteroplace.model.timeline import Timeline
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.list import evaluate_order
from heteroplace.native.simulate import simulate_steps
from heteroplace.simulate.simulator import simulate
from tests.reference.live_memory import reference_peaks
from tests.reference.simulator import reference_times
from tests.strategies import Instance, exact_cases, instances_with_plan, num_cases

ANY_PLAN = instances_with_plan(max_items=3, has_modes=True)


def run(case: Instance, plan: Plan) -> Timeline:
    return simulate(case.graph, case.cluster, case.costs, plan)


def with_cluster(case: Instance, plan: Plan, cluster: Cluster) -> tuple[Instance, Plan]:
    """The same tasks, costs and steps on a cluster with other rules."""
    costs = replace(case.costs, devices=cluster.identities)
    return Instance(case.graph, cluster, costs), replace(plan, cluster_digest=cluster.digest())


@pytest.mark.costly
@given(instances_with_plan(max_tasks=5, max_items=3, has_modes=True))
@num_cases(1000)
def test_core_equals_the_references_on_random_plans(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    expected = reference_times(found.graph, found.cluster, found.costs, plan)
    timeline = run(found, plan)
    assert {span.step for span in timeline.spans} == set(range(len(plan.steps)))
    for span in timeline.spans:
        assert (span.start_ns, span.finish_ns) == expected[span.step]
    assert timeline.makespan_ns == max((finish for _, finish in expected), default=0)
    peaks = zip(timeline.peak_bytes, timeline.peaks, strict=True)
    assert [(size, peak.time_ns, peak.step) for size, peak in peaks] == reference_peaks(
        found.graph, found.cluster, plan, expected
    )


@pytest.mark.costly
@given(instances_with_plan())
@num_cases(200)
def test_core_and_python_agree_on_live_memory(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    timeline = run(found, plan)
    peaks = zip(timeline.peak_bytes, timeline.peaks, strict=True)
    expected = live_peaks(found.graph, found.cluster, found.costs, plan)
    assert [LivePeak(size, peak.step) for size, peak in peaks] == list(expected)


@given(ANY_PLAN)
@num_cases(100)
def test_core_and_python_agree_on_static_memory(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    assert run(found, plan).used_bytes == plan_memory_use(found.graph, found.cluster, plan)


@given(instances_with_plan())
@num_cases(100)
def test_a_placement_needs_as_much_as_its_plan(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    placement = plan.placement(len(found.graph.tasks))
    copies = [(copy.tensor, copy.dst) for copy in plan.copies]
    expected = plan_memory_use(found.graph, found.cluster, plan)
    assert memory_use(found.graph, found.cluster, placement, copies) == expected


@given(ANY_PLAN)
@num_cases(100)
def test_live_bytes_never_exceed_the_static_rule(case: tuple[Instance, Plan]) -> None:
    timeline = run(*case)
    for live, static in zip(timeline.peak_bytes, timeline.used_bytes, strict=True):
        assert live <= static


@given(ANY_PLAN)
@num_cases(100)
def test_random_plans_pass_the_check(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    check_plan(found.graph, found.cluster, found.costs, plan)


@given(ANY_PLAN)
@num_cases(100)
def test_steps_of_one_resource_never_overlap(case: tuple[Instance, Plan]) -> None:
    found, plan = case
    times = {span.step: (span.start_ns, span.finish_ns) for span in run(found, plan).spans}
    served: dict[int, list[tuple[int, int]]] = {}
    for index, step in enumerate(plan.steps):
        for resource in occupied(found.graph, found.cluster, step):
            served.setdefault(resource, []).append(times[index])
    for spans in served.values():
        for (_, finish), (start, _) in pairwise(spans):
            assert finish <= start


@given(ANY_PLAN)
@exact_cases(100)
def test_stricter_congestion_never_shortens_a_plan(case: tuple[Instance, Plan]) -> None:
    """With a channel per link: links that share one otherwise need not share a port."""
    found, plan = case
    links = tuple(replace(link, channel=link.name) for link in found.cluster.links)
    makespans = []
    for mode in CONGESTION_MODES:
        cluster = replace(found.cluster, links=links, congestion=mode)
        makespans.append(run(*with_cluster(found, plan, cluster)).makespan_ns)
    assert makespans == sorted(makespans)


@given(ANY_PLAN, st.data())
@exact_cases(100)
def test_shorter_runs_never_lengthen_a_plan(
    case: tuple[Instance, Plan], data: st.DataObject
) -> None:
    found, plan = case
    # Negative cells are no times.
    columns = tuple(
        array("q", (data.draw(st.integers(0, ns)) if ns > 0 else ns for ns in column))
        for column in found.costs.ns
    )
    shorter = replace(found, costs=replace(found.costs, ns=columns))
    assert run(shorter, plan).makespan_ns <= run(found, plan).makespan_ns


@pytest.mark.costly
@given(ANY_PLAN, st.sampled_from([2, 4, 8]))
@num_cases(100)
def test_the_makespan_scales_with_all_times(case: tuple[Instance, Plan], factor: int) -> None:
    found, plan = case

    def makespan_of_slowed(factor: int) -> int:
        links = tuple(
            replace(link, bytes_per_second=10**9 // factor, latency_ns=link.latency_ns * factor)
            for link in found.cluster.links
        )
        slow, slow_plan = with_cluster(found, plan, replace(found.cluster, links=links))
        # Negative cells are no times.
        columns = ([ns * factor if ns > 0 else ns for ns in column] for column in slow.costs.ns)
        costs = replace(slow.costs, ns=tuple(array("q", column) for column in columns))
        return run(replace(slow, costs=costs), slow_plan).makespan_ns

    assert makespan_of_slowed(factor) == factor * makespan_of_slowed(1)


def test_missing_copy_is_an_error_that_names_the_step(diamond: Instance) -> None:
    steps = (Run(0, 0), Run(1, 1), Run(2, 0), Run(3, 0))
    plan = Plan(diamond.graph.digest(), diamond.cluster.digest(), steps, "test")
    with pytest.raises(PlanError, match=r"step 1: run b @ gpu1: tensor 'a\.0' is not in"):
        run(diamond, plan)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Run(7, 0), r"step 1: run \?7 @ gpu0 items 0: no task has id 7"),
        (Run(1, -1), r"step 1: run b @ \?-1 items 0: no device has id -1"),
        (Copy(0, 0, 1, (5,)), r"step 1: copy a\.0 m0 => m1 via \?5 .* link ids that do not exist"),
        (Copy(0, 0, 9, (0,)), r"step 1: copy a\.0 m0 => \?9 .*: no memory has id 9"),
        (Run(1, 0, (2,)), r"step 1: run b @ gpu0 items 2: its items are \(2,\)"),
        (Run(1, 0, ()), r"step 1: run b @ gpu0 items \(\): its items are \(\)"),
        (Run(1, 0, (0, 1)), "step 1: run b @ gpu0 items 0,1: a batch of 2; the device takes"),
        (
            Run(1, 0, (1,)),
            r"step 1: run b @ gpu0 items 1: tensor 'a\.0' is not in memory 'm0' by then",
        ),
    ],
)
def test_wrong_step_is_an_error_and_no_crash(diamond: Instance, step: Step, message: str) -> None:
    steps = (Run(0, 0), step)
    plan = Plan(diamond.graph.digest(), diamond.cluster.digest(), steps, "test", items=2)
    with pytest.raises(PlanError, match=message):
        run(diamond, plan)


def test_transfer_takes_latency_and_bytes_over_bandwidth(diamond: Instance) -> None:
    route = diamond.cluster.route(0, 1)
    steps = (Run(0, 0), Copy(0, 0, 1, route), Run(1, 1))
    plan = Plan(diamond.graph.digest(), diamond.cluster.digest(), steps, "test")
    timeline = run(diamond, plan)
    assert [(span.start_ns, span.finish_ns) for span in timeline.spans] == [(0, 2), (2, 3), (3, 8)]


def test_a_measured_link_is_linear_between_its_points_and_in_the_core_as_here() -> None:
    """Below the first point from nothing, beyond the last one at the bandwidth; rounded up."""
    link = Link("ab", 0, 1, 10**9, 5, "ab", ((10, 100), (20, 70), (40, 71)))
    expected = {0: 0, 1: 10, 10: 100, 15: 85, 20: 70, 21: 71, 40: 71, 41: 72, 50: 81}
    assert {size: link.payload_ns(size) for size in expected} == expected
    builder = TaskGraphBuilder("sizes")
    for size in expected:
        builder.add_task(Task(f"make{size}", "op", devices=("a",)), [])
        value = builder.add_tensor(f"make{size}", num_bytes=size)
        builder.add_task(Task(f"read{size}", "op", devices=("b",)), [value])
    graph = builder.finalize([builder.add_tensor("read50", num_bytes=0)])
    cluster = Cluster(
        "pair",
        (Memory("a", 1000), Memory("b", 1000)),
        (Device("a", "cuda", "", 0, 0), Device("b", "cuda", "", 1, 1)),
        (link, Link("ba", 1, 0, 1, 0, "ba")),
        congestion="none",
    )
    costs = build_table(graph, cluster, lambda _task, _device: Cost.given(0))
    native = NativeProblem(graph, cluster, costs)
    steps = evaluate_order(native, [0, 1] * len(expected), range(len(graph.tasks))).steps
    times = simulate_steps(native, steps)
    taken = {
        graph.tensors[step.tensor].bytes: int(times.finish_ns[i] - times.start_ns[i])
        for i, step in enumerate(steps)
        if isinstance(step, Copy)
    }
    assert taken == {size: ns + 5 for size, ns in expected.items()}
