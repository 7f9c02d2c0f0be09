"""sequential_placement: few devices, filled one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import InfeasibleError, SolverError
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.memory_use.memory import memory_use
from heteroplace.solve.list.sequential_placement import (
    SEQUENTIAL_ORDERS,
    _Filling,
    sequential_placement,
)
from tests.instances import cpu, gpus, instance
from tests.strategies import Instance

CHAIN = [("a", "b"), ("b", "c"), ("c", "d")]
TIMES = {name: (1, 2) for name in "abcd"}
LINKS = {(0, 1): 1, (1, 0): 1}


def chain(capacity: int) -> Instance:
    """Four tasks with weights of 20 and an output of 10 each."""
    return instance(CHAIN, TIMES, gpus(LINKS, 2, capacity), weight_bytes=20)


@pytest.mark.parametrize("order", SEQUENTIAL_ORDERS)
def test_model_that_fits_is_on_one_device(order: str) -> None:
    problem = chain(1000)
    found = sequential_placement(problem.graph, problem.cluster, problem.costs, order)
    assert set(found.devices) == {0}
    assert found.excess_bytes == {}


@pytest.mark.parametrize("order", ["m", "dfs", "cpd"])
def test_first_device_is_filled_to_its_limit(order: str) -> None:
    problem = chain(70)  # two tasks need 60; the third reads one tensor of the first device
    found = sequential_placement(problem.graph, problem.cluster, problem.costs, order)
    assert found.devices == (0, 0, 1, 1)
    assert found.excess_bytes == {}


@pytest.mark.parametrize("order", SEQUENTIAL_ORDERS)
def test_device_that_takes_no_single_items_is_not_filled(order: str) -> None:
    case = chain(70)
    devices = (case.cluster.devices[0], replace(case.cluster.devices[1], batch_sizes=(4,)))
    cluster = replace(case.cluster, devices=devices)
    found = sequential_placement(case.graph, cluster, case.costs, order)
    assert set(found.devices) == {0}
    assert list(found.excess_bytes) == ["m0"]


def test_memory_exactly_full_is_used() -> None:
    problem = chain(70)
    assert sequential_placement(problem.graph, problem.cluster, problem.costs, "cpd").devices == (
        0, 0, 1, 1,
    )  # fmt: skip
    tight = chain(69)
    found = sequential_placement(tight.graph, tight.cluster, tight.costs, "cpd")
    assert found.excess_bytes


def test_when_all_are_full_the_least_full_is_taken_and_said() -> None:
    problem = chain(30)
    found = sequential_placement(problem.graph, problem.cluster, problem.costs, "cpd")
    assert sorted(set(found.devices)) == [0, 1]
    assert set(found.excess_bytes) == {"m0", "m1"}


def test_when_all_are_full_a_device_that_could_hold_the_task_alone_is_taken() -> None:
    problem = chain(1000)
    memories = (
        replace(problem.cluster.memories[0], bytes=100),
        replace(problem.cluster.memories[1], bytes=25),
    )
    cluster = replace(problem.cluster, memories=memories)
    costs = build_table(problem.graph, cluster, lambda task, device: Cost.given(1))
    found = sequential_placement(problem.graph, cluster, costs, "cpd")
    assert set(found.devices) == {0}
    assert set(found.excess_bytes) == {"m0"}


def test_pinned_task_goes_where_it_must() -> None:
    problem = chain(1000)
    tasks = [
        replace(task, devices=("gpu1",)) if task.name == "b" else task
        for task in problem.graph.tasks
    ]
    graph = replace(problem.graph, tasks=tuple(tasks))
    costs = build_table(graph, problem.cluster, lambda task, device: Cost.given(1))
    found = sequential_placement(graph, problem.cluster, costs, "cpd")
    assert found.devices[1] == 1


def test_tasks_together_are_charged_at_once() -> None:
    """Room for one of the two: both go to the next device."""
    problem = chain(1000)
    cluster = replace(
        problem.cluster,
        memories=(replace(problem.cluster.memories[0], bytes=70), problem.cluster.memories[1]),
    )
    tasks = [
        replace(task, together="pair") if task.name in "bd" else task
        for task in problem.graph.tasks
    ]
    graph = replace(problem.graph, tasks=tuple(tasks))
    costs = build_table(graph, cluster, lambda task, device: Cost.given(1 + device))
    found = sequential_placement(graph, cluster, costs, "cpd")
    assert found.devices[0] == 0
    assert found.devices[1] == found.devices[3] == 1


def test_devices_of_one_memory_are_one() -> None:
    problem = instance(CHAIN, {name: (4, 4, 3) for name in "abcd"}, cpu(), weight_bytes=20)
    found = sequential_placement(problem.graph, problem.cluster, problem.costs, "cpd")
    assert set(found.devices) == {2}


def test_devices_behind_one_with_room_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    names, count = [f"t{index}" for index in range(30)], 20
    case = instance([], dict.fromkeys(names, (1,) * count), gpus({}, count))
    asked, need = list[int](), _Filling._need  # what is looked at shows in no result

    def counted(filling: _Filling, members: Sequence[int], device: int) -> int:
        asked.append(device)
        return need(filling, members, device)

    monkeypatch.setattr(_Filling, "_need", counted)
    found = sequential_placement(case.graph, case.cluster, case.costs, "m")
    assert set(found.devices) == {0}
    assert asked == [0] * len(names)


def test_task_that_nobody_can_run_is_named() -> None:
    problem = instance(CHAIN, {**TIMES, "c": (None, None)}, gpus(LINKS, 2))
    with pytest.raises(InfeasibleError, match="'c'"):
        sequential_placement(problem.graph, problem.cluster, problem.costs, "m")


def test_unknown_order_is_refused() -> None:
    problem = chain(1000)
    with pytest.raises(SolverError, match="m, dfs, cpd, pipeline"):
        sequential_placement(problem.graph, problem.cluster, problem.costs, "random")


@given(st.integers(30, 200), st.sampled_from(["m", "dfs", "cpd"]))
def test_excess_is_that_of_the_memory_rule(capacity: int, order: str) -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    problem = instance(edges, TIMES, gpus(LINKS, 2, capacity, host=0), weight_bytes=20)
    graph, cluster = problem.graph, problem.cluster
    found = sequential_placement(graph, cluster, problem.costs, order)
    copies = []
    for index, tensor in enumerate(graph.tensors):
        home = 0 if tensor.producer is None else found.devices[tensor.producer]
        memories = {found.devices[consumer] for consumer in tensor.consumers}
        copies += [(index, memory) for memory in sorted(memories) if memory != home]
    used = memory_use(graph, cluster, found.devices, copies)
    over = {
        memory.name: need - memory.bytes
        for memory, need in zip(cluster.memories, used, strict=True)
        if need > memory.bytes
    }
    assert found.excess_bytes == over
