"""Optimal Operation Fusion: segments of an order with the least cut."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heteroplace.coarsen.breakpoints import (
    BreakpointOptions,
    Segments,
    cut_order,
    default_max_bytes,
    default_max_tasks,
    fuse_segments,
    task_bytes,
)
from heteroplace.coarsen.coarse import coarsen
from heteroplace.coarsen.levels import level_weights
from heteroplace.coarsen.topo import cpd_topo
from heteroplace.errors import GraphError, SolverError
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_graph import SegmentRules
from tests.dags import PAIR, WeightedDag, chain_of, task_graphs, weighted_dags
from tests.instances import gpus
from tests.reference.graphs import least_cut
from tests.strategies import exact_cases, num_cases
from tests.unit.coarsen.celeritas import example_costs, example_graph, example_weights


def rules(max_nodes: int, max_bytes: int, num_bytes: list[int]) -> SegmentRules:
    """Limits on numbers only."""
    size = len(num_bytes)
    free = np.full(size, -1, dtype=np.int64)
    anywhere = np.ones((size, 1), dtype=bool)
    return SegmentRules(max_nodes, max_bytes, np.array(num_bytes, np.int64), free, anywhere)


def _cut_example(max_tasks: int, max_bytes: int = 99, bytes_of_d: int = 1) -> tuple[str, int]:
    weights = example_weights()
    names = [task.name for task in example_graph().tasks]
    sizes = [bytes_of_d if name == "d" else 1 for name in names]
    found = cut_order(weights, cpd_topo(weights), rules(max_tasks, max_bytes, sizes))
    return "|".join("".join(names[task] for task in group) for group in found.groups), found.cut_ns


@pytest.mark.parametrize(
    ("max_tasks", "groups", "cut_ns"),
    [
        (1, "a|b|d|g|c|e|f", 21),
        (3, "abd|g|cef", 12),
        (4, "abdg|cef", 11),
        (7, "abdgcef", 0),
    ],
)
def test_worked_example_without_a_memory_limit(max_tasks: int, groups: str, cut_ns: int) -> None:
    assert _cut_example(max_tasks) == (groups, cut_ns)


def test_worked_example_with_memory_limits() -> None:
    assert _cut_example(3, max_bytes=2)[1] == 15
    assert _cut_example(7, max_bytes=4, bytes_of_d=3)[1] == 13


def test_fusion_of_the_worked_example_lowers_its_ccr_to_11_sixteenths() -> None:
    graph, costs = example_graph(), example_costs()
    found = fuse_segments(graph, PAIR, costs, BreakpointOptions(max_tasks=4))
    coarse = coarsen(graph, found.groups)
    weights = level_weights(coarse.graph, PAIR, coarse.project_costs(costs, PAIR))
    assert [task.name for task in coarse.graph.tasks] == ["a..g", "c..f"]
    assert weights.ccr == 0.6875


@given(weighted_dags(), st.integers(1, 5), st.integers(0, 20))
@num_cases(200)
def test_cut_equals_exhaustive_search(case: WeightedDag, max_nodes: int, max_bytes: int) -> None:
    weights = case.weights()
    order = cpd_topo(weights)
    found = cut_order(weights, order, rules(max_nodes, max_bytes, list(case.node_ns)))
    expected = least_cut(order.tolist(), case.edges, case.node_ns, max_nodes, max_bytes)
    assert found.cut_ns == expected
    assert list(chain.from_iterable(found.groups)) == order.tolist()
    assert found.cut_ns == _cut_weight(case, found)
    for group in found.groups:
        num_bytes = sum(case.node_ns[task] for task in group)
        assert len(group) == 1 or (len(group) <= max_nodes and num_bytes <= max_bytes)


@pytest.mark.parametrize("num_nodes", [9, 10])
@given(st.data())
@exact_cases(50)
def test_cut_equals_exhaustive_search_on_larger_graphs(num_nodes: int, data: st.DataObject) -> None:
    case = data.draw(weighted_dags(max_nodes=num_nodes))
    max_nodes, max_bytes = data.draw(st.integers(1, num_nodes)), data.draw(st.integers(0, 40))
    weights = case.weights()
    order = cpd_topo(weights)
    found = cut_order(weights, order, rules(max_nodes, max_bytes, list(case.node_ns)))
    expected = least_cut(order.tolist(), case.edges, case.node_ns, max_nodes, max_bytes)
    assert found.cut_ns == expected


@given(weighted_dags(max_nodes=14))
@num_cases(200)
def test_cut_does_not_increase_with_range_or_memory(case: WeightedDag) -> None:
    weights = case.weights()
    order = cpd_topo(weights)
    sizes = list(case.node_ns)
    by_range = [cut_order(weights, order, rules(r, 30, sizes)).cut_ns for r in range(1, 16)]
    assert by_range == sorted(by_range, reverse=True)
    by_bytes = [cut_order(weights, order, rules(5, m, sizes)).cut_ns for m in range(0, 40, 3)]
    assert by_bytes == sorted(by_bytes, reverse=True)


@pytest.mark.costly
@given(task_graphs(max_tasks=10), st.integers(1, 6), st.sampled_from(["m", "dfs", "cpd"]))
@num_cases(200)
def test_groups_can_be_coarsened_and_placed(graph: TaskGraph, max_tasks: int, order: str) -> None:
    """Whatever the labels and pins: no cycle, and each group has a device."""
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 2)
    costs = build_table(graph, cluster, lambda task, device: Cost.given(1))
    assume(not _has_label_without_device(graph))
    options = BreakpointOptions(max_tasks=max_tasks, order=order)
    found = fuse_segments(graph, cluster, costs, options)
    coarse = coarsen(graph, found.groups)
    coarse.project_costs(costs, cluster)
    assert max(len(group) for group in found.groups) <= max_tasks


def test_two_labels_never_share_a_group() -> None:
    found = _fuse_chain(
        [
            Task("a", "op", together="g"),
            Task("b", "op"),
            Task("c", "op"),
            Task("d", "op", together="h"),
        ]
    )
    assert found.groups == ((0,), (1, 2, 3))


def test_tasks_without_a_common_device_never_share_a_group() -> None:
    found = _fuse_chain(
        [Task("a", "op", devices=("gpu0",)), Task("b", "op"), Task("c", "op", devices=("gpu1",))]
    )
    assert found.groups == ((0,), (1, 2))


def test_more_than_62_devices_are_told_apart() -> None:
    cluster = gpus({(0, 1): 1, (1, 0): 1}, 70)
    tasks = [
        Task(name, "op", devices=(f"gpu{device}",))
        for name, device in (("a", 65), ("b", 65), ("c", 3))
    ]
    graph = chain_of(*tasks)
    costs = build_table(graph, cluster, lambda task, device: Cost.given(1))
    options = BreakpointOptions(max_tasks=3)
    assert fuse_segments(graph, cluster, costs, options).groups == ((0, 1), (2,))


def test_task_larger_than_the_limit_is_alone() -> None:
    case = WeightedDag((1,) * 5, {(task, task + 1): 9 for task in range(4)})
    found = cut_order(case.weights(), np.arange(5), rules(5, 3, [0, 1, 4, 0, 1]))
    assert found == Segments(((0, 1), (2,), (3, 4)), 18)


def test_ties_go_to_fewer_and_larger_groups() -> None:
    case = WeightedDag((1,) * 4, {})
    assert cut_order(case.weights(), np.arange(4), rules(3, 9, [1] * 4)).groups == ((0,), (1, 2, 3))


def test_graph_without_tasks_has_no_groups() -> None:
    assert cut_order(WeightedDag((), {}).weights(), np.arange(0), rules(1, 1, [])).groups == ()


def test_order_that_is_not_topological_is_refused() -> None:
    case = WeightedDag((1, 1), {(0, 1): 1})
    for order in ([1, 0], [0, 0], [0], [0, 2]):
        with pytest.raises(GraphError, match="not a topological order"):
            cut_order(case.weights(), np.array(order), rules(1, 1, [1, 1]))


def test_options_out_of_range_are_refused() -> None:
    for limits in ({"max_tasks": 0}, {"max_tasks": -1}, {"max_bytes": -1}):
        with pytest.raises(SolverError, match="expected max_tasks >= 1 and max_bytes >= 0"):
            BreakpointOptions(**limits)


def test_defaults() -> None:
    assert [default_max_tasks(n, 4) for n in (6332, 3810, 1, 100_000)] == [198, 119, 1, 200]
    assert default_max_bytes(gpus({}, 2, capacity=10)) == 2


def test_bytes_of_a_task_are_weights_workspace_and_what_it_makes() -> None:
    builder = TaskGraphBuilder("one")
    x = builder.add_input("x", num_bytes=1000)
    builder.add_task(Task("a", "op", weight_bytes=100, workspace_bytes=10), [x])
    builder.add_tensor("a", num_bytes=3)
    graph = builder.finalize([builder.add_tensor("a", num_bytes=2)])
    assert task_bytes(graph).tolist() == [115]


def _fuse_chain(tasks: list[Task]) -> Segments:
    graph = chain_of(*tasks)
    costs = build_table(graph, PAIR, lambda task, device: Cost.given(1))
    return fuse_segments(graph, PAIR, costs, BreakpointOptions(max_tasks=9))


def _cut_weight(case: WeightedDag, found: Segments) -> int:
    group_of = {task: index for index, group in enumerate(found.groups) for task in group}
    return sum(ns for (src, dst), ns in case.edges.items() if group_of[src] != group_of[dst])


def _has_label_without_device(graph: TaskGraph) -> bool:
    common: dict[str, set[str]] = {}
    for task in graph.tasks:
        if task.together is not None:
            devices = set(task.devices or ("gpu0", "gpu1"))
            common[task.together] = common.get(task.together, devices) & devices
    return any(not devices for devices in common.values())
