"""The core's simulator against the reference, and its errors."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings

from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.memory import memory_use
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.simulate.simulator import simulate
from tests.reference.simulator import reference_times
from tests.strategies import Instance, instances_with_plan


@given(instances_with_plan())
@settings(max_examples=150, deadline=None)
def test_simulator_equals_reference_on_random_plans(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    expected = reference_times(instance.graph, instance.cluster, instance.costs, plan)
    timeline = simulate(instance.graph, instance.cluster, instance.costs, plan)
    for span in timeline.spans:
        assert (span.start_ns, span.finish_ns) == expected[span.step]
    assert timeline.makespan_ns == max((finish for _, finish in expected), default=0)
    assert {span.step for span in timeline.spans} == set(range(len(plan.steps)))


@given(instances_with_plan())
@settings(max_examples=100, deadline=None)
def test_core_and_python_agree_on_memory_use(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    timeline = simulate(instance.graph, instance.cluster, instance.costs, plan)
    placement = plan.placement(len(instance.graph.tasks))
    copies = [(copy.tensor, copy.dst) for copy in plan.copies]
    assert timeline.peak_bytes == memory_use(instance.graph, instance.cluster, placement, copies)


@given(instances_with_plan())
@settings(max_examples=60, deadline=None)
def test_random_plans_pass_the_check(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    check_plan(instance.graph, instance.cluster, instance.costs, plan)


@given(instances_with_plan())
@settings(max_examples=60, deadline=None)
def test_spans_of_one_resource_never_overlap(case: tuple[Instance, Plan]) -> None:
    instance, plan = case
    timeline = simulate(instance.graph, instance.cluster, instance.costs, plan)
    by_unit: dict[str, list[tuple[int, int]]] = {}
    for span in timeline.spans:
        step = plan.steps[span.step]
        if isinstance(step, Run):
            names = list(instance.cluster.devices[step.device].units)
        else:
            names = [span.resource]
        for name in names:
            by_unit.setdefault(name, []).append((span.start_ns, span.finish_ns))
    for spans in by_unit.values():
        for (_, finish), (start, _) in pairwise(spans):
            assert finish <= start


def test_missing_copy_is_an_error_that_names_the_step(diamond: Instance) -> None:
    steps = (Run(0, 0), Run(1, 1), Run(2, 0), Run(3, 0))
    plan = Plan(diamond.graph.digest(), diamond.cluster.digest(), steps, "test")
    with pytest.raises(PlanError, match="step 1 reads tensor 0 in memory 1"):
        simulate(diamond.graph, diamond.cluster, diamond.costs, plan)


def test_transfer_takes_latency_and_bytes_over_bandwidth(diamond: Instance) -> None:
    route = diamond.cluster.route(0, 1)
    steps = (Run(0, 0), Copy(0, 0, 1, route), Run(1, 1))
    plan = Plan(diamond.graph.digest(), diamond.cluster.digest(), steps, "test")
    timeline = simulate(diamond.graph, diamond.cluster, diamond.costs, plan)
    assert [(span.start_ns, span.finish_ns) for span in timeline.spans] == [(0, 2), (2, 3), (3, 8)]
