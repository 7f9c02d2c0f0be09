"""Busy times of resources, and repetition: the steady state is reached, not exceeded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.check import check_plan
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.step_values import occupied
from heteroplace.model.timeline import Timeline
from heteroplace.simulate.simulator import simulate
from heteroplace.simulate.throughput import busy_ns, repeat_plan, throughput_ns
from tests.instances import gpus, instance
from tests.reference.software_pipeline import pipeline_plan
from tests.strategies import Instance, exact_cases, instances_with_plan, num_cases

ANY_PLAN = instances_with_plan(max_items=2, has_modes=True)


def run(case: Instance, plan: Plan) -> Timeline:
    return simulate(case.graph, case.cluster, case.costs, plan)


def loads(case: Instance, plan: Plan) -> list[int]:
    """Busy time of each resource."""
    timeline = run(case, plan)
    times = {span.step: span.finish_ns - span.start_ns for span in timeline.spans}
    return busy_ns(
        case.graph, case.cluster, plan.steps, [times.get(i, 0) for i in range(len(plan.steps))]
    )


def there_and_back() -> tuple[Instance, Plan]:
    """a (3) and c (4) on device 0, b (5) between them on device 1; copies take 2 each."""
    cluster = gpus({(0, 1): 5, (1, 0): 5}, 2)
    times = {"a": (3, None), "b": (None, 5), "c": (4, None)}
    case = instance([("a", "b"), ("b", "c")], times, cluster)
    steps: tuple[Step, ...] = (
        Run(0, 0),
        Copy(0, 0, 1, (0,)),
        Run(1, 1),
        Copy(1, 1, 0, (1,)),
        Run(2, 0),
    )
    return case, Plan(case.graph.digest(), cluster.digest(), steps, "by hand")


def test_loads_of_a_plan() -> None:
    case, plan = there_and_back()
    assert list(case.cluster.resources) == ["/cuda0", "/cuda1", "channel 0-1", "channel 1-0"]
    assert loads(case, plan) == [7, 5, 2, 2]


@pytest.mark.parametrize(
    ("mode", "engines", "names"),
    [
        ("none", (None, None), []),
        ("port", (None, None), ["out of m0", "into m1", "out of m1", "into m0"]),
        ("bus", (None, None), ["bus"]),
        ("none", (1, None), ["copy engine of m0"]),
        ("none", (2, 0), ["read engine of m0", "write engine of m0"]),
    ],
)
def test_names_of_what_copies_occupy(
    mode: str, engines: tuple[int | None, ...], names: list[str]
) -> None:
    cluster = there_and_back()[0].cluster
    devices = tuple(
        replace(device, copy_engines=count)
        for device, count in zip(cluster.devices, engines, strict=True)
    )
    changed = replace(cluster, congestion=mode, devices=devices)
    assert list(changed.resources) == ["/cuda0", "/cuda1", *names]


def test_steady_state_is_the_busiest_resource() -> None:
    case, plan = there_and_back()
    assert throughput_ns(case.graph, case.cluster, case.costs, plan) == 7


@given(ANY_PLAN, st.integers(1, 3))
@num_cases(100)
def test_plans_of_several_items_are_judged_per_item(
    case: tuple[Instance, Plan], count: int
) -> None:
    found, plan = case
    whole = found.graph, found.cluster, found.costs
    busiest_ns = max(loads(found, plan))
    assert throughput_ns(*whole, plan) == -(-busiest_ns // plan.items)
    repeated = repeat_plan(plan, count)
    assert throughput_ns(*whole, repeated) == throughput_ns(*whole, plan)


def test_a_copy_of_several_items_takes_as_long_as_all_of_them() -> None:
    case, plan = there_and_back()
    slow = replace(case.cluster.links[0], bytes_per_second=10**8, latency_ns=1000)
    cluster = replace(case.cluster, links=(slow, *case.cluster.links[1:]))
    together = [replace(step, items=(0, 1)) for step in plan.steps if isinstance(step, Copy)]
    several = replace(plan, steps=tuple(together), items=2)
    copied_ns = cluster.transfer_ns((0,), 2 * case.graph.tensors[0].bytes)
    assert throughput_ns(case.graph, cluster, case.costs, several) == -(-copied_ns // 2)


def test_a_plan_that_takes_no_time_has_no_limit() -> None:
    case = instance([], {"a": (0, 0)}, gpus({}, 2))
    plan = Plan(case.graph.digest(), case.cluster.digest(), (Run(0, 0),), "by hand")
    assert throughput_ns(case.graph, case.cluster, case.costs, plan) == 0


def test_repetitions_in_plan_order_wait_for_the_way_there_and_back() -> None:
    """Device 0 serves a and c of one item before a of the next: 16 for each, not 7."""
    case, plan = there_and_back()
    assert [run(case, repeat_plan(plan, count)).makespan_ns for count in (1, 2, 5)] == [16, 32, 80]


def test_a_pipeline_reaches_the_steady_state() -> None:
    case, plan = there_and_back()
    found = [pipeline_plan(case.graph, case.cluster, plan, run(case, plan), n) for n in (1, 2, 100)]
    assert [pipeline.period_ns for pipeline in found] == [7, 7, 7]
    makespans = [run(case, pipeline.plan).makespan_ns for pipeline in found]
    assert makespans == [16, 21, 700]


@given(ANY_PLAN, st.integers(1, 4))
@exact_cases(100)
def test_a_pipeline_follows_at_its_period(case: tuple[Instance, Plan], count: int) -> None:
    found, plan = case
    pipeline = pipeline_plan(found.graph, found.cluster, plan, run(*case), count)
    makespan = run(found, pipeline.plan).makespan_ns
    assert makespan <= pipeline.latency_ns + (count - 1) * pipeline.period_ns


@pytest.mark.costly
@given(ANY_PLAN, st.integers(1, 4), st.booleans())
@num_cases(100)
def test_no_repetition_exceeds_the_steady_state(
    case: tuple[Instance, Plan], count: int, is_pipeline: bool
) -> None:
    found, plan = case
    timeline = run(*case)
    busiest_ns = max(loads(found, plan))
    if is_pipeline:
        repeated = pipeline_plan(found.graph, found.cluster, plan, timeline, count).plan
    else:
        repeated = repeat_plan(plan, count)
    assert run(found, repeated).makespan_ns >= count * busiest_ns


@given(ANY_PLAN)
@num_cases(100)
def test_the_period_is_the_busiest_resource_if_steps_occupy_one(
    case: tuple[Instance, Plan],
) -> None:
    found, plan = case
    timeline = run(*case)
    busiest_ns = max(loads(found, plan))
    period_ns = pipeline_plan(found.graph, found.cluster, plan, timeline, 1).period_ns
    if all(len(occupied(found.graph, found.cluster, step)) <= 1 for step in plan.steps):
        assert period_ns == max(1, busiest_ns)
    else:
        assert period_ns >= busiest_ns


@pytest.mark.costly
@given(ANY_PLAN, st.integers(1, 3), st.booleans())
@num_cases(100)
def test_repeated_plans_pass_the_check(
    case: tuple[Instance, Plan], count: int, is_pipeline: bool
) -> None:
    found, plan = case
    if is_pipeline:
        repeated = pipeline_plan(found.graph, found.cluster, plan, run(*case), count).plan
    else:
        repeated = repeat_plan(plan, count)
    assert repeated.items == count * plan.items
    check_plan(found.graph, found.cluster, found.costs, repeated)
