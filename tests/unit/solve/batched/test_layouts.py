"""Layouts that annealing begins with: batches that devices run, where there are any."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.parts.throughput.batched.layouts import first_layout
from heteroplace.parts.throughput.native.core_batches import batch_compositions
from heteroplace.solve import Problem
from tests.instances import given_costs, gpus, instance
from tests.strategies import Instance, exact_cases, instances


@given(instances(max_batch=4), st.integers(1, 8), st.sampled_from([1, 2]))
@exact_cases(40)
def test_there_is_a_layout_where_every_task_can_be_served(
    case: Instance, items: int, block: int
) -> None:
    problem = Problem(case.graph, case.cluster, case.costs)
    sizes = case.costs.batches
    run_ns = problem.native.batch_run_ns
    is_served = [
        any(
            all(size % block == 0 for _, size in parts)
            for parts in batch_compositions(problem.native, task, items)
        )
        for task in range(len(case.graph.tasks))
    ]
    layout = first_layout(problem, items, block) if items % block == 0 else None
    if layout is None:
        assert items % block or not all(is_served)
        return
    for task, devices in enumerate(layout.device.tolist()):
        assert len(devices) == items // block
        for device, count in Counter(devices).items():
            assert run_ns[sizes.index(count * block), task, device] != IMPOSSIBLE


@pytest.mark.parametrize("num_devices", [3, 150])
def test_the_fastest_of_many_devices_are_taken(num_devices: int) -> None:
    # Batches of one item only: three devices have one each.
    case = instance([], dict.fromkeys("ab", (1,) * num_devices), gpus({}, num_devices))
    order = {"a": 1, "b": -1}
    costs = build_table(
        case.graph,
        case.cluster,
        lambda task, device: Cost.given(500 + order["ab"[task]] * device),
    )
    layout = first_layout(Problem(case.graph, case.cluster, costs), 3, 1)
    assert layout is not None
    found = [sorted(row) for row in layout.device.tolist()]
    assert found == [[0, 1, 2], list(range(num_devices - 3, num_devices))]


def test_a_group_has_the_batches_that_are_fastest_for_all_of_it() -> None:
    builder = TaskGraphBuilder("group")
    for name in "ab":
        builder.add_task(Task(name, "op", together="g"), [])
        builder.add_tensor(name, num_bytes=1)
    graph, cluster = builder.finalize(["a.0", "b.0"]), gpus({}, 4)
    costs = given_costs(graph, cluster, {"a": (1, 4, 9, 5), "b": (9, 4, 1, 3)})
    layout = first_layout(Problem(graph, cluster, costs), 2, 1)
    assert layout is not None
    assert layout.device.tolist() == [[1, 3]] * 2


def test_more_parts_are_taken_where_few_do_not_do() -> None:
    case = instance([], {"a": (1,) * 5}, gpus({}, 5))
    problem = Problem(case.graph, case.cluster, case.costs)
    five = first_layout(problem, 5, 1)
    assert five is not None and sorted(five.device[0].tolist()) == [0, 1, 2, 3, 4]
    assert first_layout(problem, 6, 1) is None
