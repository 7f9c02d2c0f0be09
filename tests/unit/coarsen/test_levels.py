"""Levels, critical paths and CCR."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from heteroplace.coarsen.levels import LevelWeights, level_weights, task_dag, usable_devices
from heteroplace.errors import GraphError, InfeasibleError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.native.core_graph import Dag
from tests.dags import PAIR, WeightedDag, lettered, weighted_dags
from tests.instances import given_costs, gpus
from tests.reference.graphs import longest_paths
from tests.strategies import num_cases
from tests.unit.coarsen.celeritas import example_graph, example_weights


def test_levels_of_the_worked_example() -> None:
    levels = example_weights().levels()
    assert levels.tlevel_ns.tolist() == [0, 4, 7, 8, 12, 18, 8]
    assert levels.blevel_ns.tolist() == [21, 17, 12, 13, 7, 3, 1]
    assert levels.through_ns.tolist() == [21, 21, 19, 21, 19, 21, 9]
    assert levels.critical_path_ns == 21
    assert [example_graph().tasks[task].name for task in levels.critical_path] == list("abdf")


def test_ccr_of_the_worked_example_is_21_sixteenths() -> None:
    assert example_weights().ccr == 1.3125


def test_ccr_without_run_times() -> None:
    assert WeightedDag((0, 0), {(0, 1): 3}).weights().ccr == math.inf
    assert WeightedDag((0, 0), {}).weights().ccr == 0


@given(weighted_dags())
@num_cases(200)
def test_levels_equal_relaxation_over_all_edges(case: WeightedDag) -> None:
    levels = case.weights().levels()
    expected = longest_paths(case.num_nodes, case.node_ns, case.edges)
    assert (levels.tlevel_ns.tolist(), levels.blevel_ns.tolist()) == expected


@given(weighted_dags())
@num_cases(200)
def test_critical_path_is_a_path_whose_nodes_have_the_longest_path_through_them(
    case: WeightedDag,
) -> None:
    levels = case.weights().levels()
    path = levels.critical_path.tolist()
    length = sum(case.node_ns[node] for node in path)
    length += sum(case.edges[edge] for edge in pairwise(path))
    assert length == levels.critical_path_ns
    assert all(levels.through_ns[node] == length for node in path)
    assert bool(path) == bool(case.num_nodes)


def test_task_weight_is_the_mean_over_devices_that_can_run_it() -> None:
    graph = lettered("ab bc")
    times: dict[str, tuple[int | None, int | None]] = {"a": (4, 9), "b": (None, 5), "c": (2, 4)}
    weights = level_weights(graph, PAIR, given_costs(graph, PAIR, times))
    assert weights.task_ns.tolist() == [7, 5, 3]  # 6.5 is rounded up


def test_edge_weight_is_the_mean_over_ordered_pairs_of_devices() -> None:
    memories = (Memory("m0", 100), Memory("m1", 100))
    devices = (
        Device("cpu.0", "cpu", "", 0, 0, (0,)),
        Device("cpu.1", "cpu", "", 0, 0, (1,)),
        Device("gpu", "cuda", "", 0, 1),
    )
    links = (Link("up", 0, 1, 10**9, 3, "up"), Link("down", 1, 0, 2 * 10**9, 0, "down"))
    cluster = Cluster("mixed", memories, devices, links)
    graph = lettered("ab", None, ab=12)
    weights = _weights(graph, cluster)
    # Two pairs up with 3 + 12, two down with 6, two inside the host memory with 0.
    assert weights.edge_ns.tolist() == [(2 * 15 + 2 * 6) / 6]


def test_pairs_that_cannot_reach_each_other_do_not_count() -> None:
    weights = _weights(lettered("ab", None, ab=6), gpus({(0, 1): 1}, 2))
    assert weights.edge_ns.tolist() == [6]


def test_edge_weight_counts_what_was_measured_of_links() -> None:
    there = Link("there", 0, 1, 10**9, 3, "there", measured=((10, 100), (20, 120)))
    cluster = gpus({(1, 0): 2}, 2)
    cluster = replace(cluster, links=(there, *cluster.links))
    expected = {4: (43 + 2) / 2, 10: (103 + 5) / 2, 16: (115 + 8) / 2, 30: (133 + 15) / 2}
    for num_bytes, mean_ns in expected.items():
        weights = _weights(lettered("ab", None, ab=num_bytes), cluster)
        route = cluster.route(0, 1), cluster.route(1, 0)
        assert sum(cluster.transfer_ns(way, num_bytes) for way in route) / 2 == mean_ns
        assert weights.edge_ns.tolist() == [round(mean_ns)]


def test_one_device_has_no_transfers() -> None:
    assert _weights(lettered("ab", None, ab=6), gpus({}, 1)).edge_ns.tolist() == [0]


def test_edge_weight_sums_the_tensors_between_two_tasks() -> None:
    builder = TaskGraphBuilder("two tensors")
    builder.add_task(Task("a", "op"), [])
    made = [builder.add_tensor("a", num_bytes=size) for size in (2, 3, 100)]
    builder.add_task(Task("b", "op"), made[:2])
    weights = _weights(builder.finalize([made[2]]), PAIR)
    assert weights.edge_ns.tolist() == [5]


def test_task_that_no_device_can_run_is_named() -> None:
    graph = lettered("ab")
    costs = build_table(
        graph, PAIR, lambda task, _: Cost.unsupported("") if task else Cost.given(1)
    )
    with pytest.raises(InfeasibleError, match="task 'b' can run on no device"):
        level_weights(graph, PAIR, costs)


def test_usable_devices_are_those_of_all_tasks_of_a_colocation_group() -> None:
    builder = TaskGraphBuilder("label")
    builder.add_task(Task("a", "op", devices=("gpu0",), together="g"), [])
    builder.add_task(Task("b", "op", together="g"), [])
    builder.add_task(Task("c", "op"), [])
    graph = builder.finalize([builder.add_tensor("c")])
    costs = build_table(graph, PAIR, lambda task, device: Cost.given(1))
    usable = usable_devices(graph, PAIR, costs)
    assert usable.tolist() == [[True, False], [True, False], [True, True]]


def test_usable_devices_take_single_items_and_have_ways_from_and_to_the_host() -> None:
    builder = TaskGraphBuilder("chain")
    builder.add_task(Task("a", "op"), [builder.add_input("x", num_bytes=1)])
    builder.add_task(Task("b", "op"), [builder.add_tensor("a", num_bytes=1)])
    builder.add_task(Task("c", "op"), [builder.add_tensor("b", num_bytes=1)])
    graph = builder.finalize([builder.add_tensor("c", num_bytes=1)])
    cluster = gpus({(0, 1): 1, (1, 0): 1, (0, 2): 1}, 3, host=0)
    devices = (*cluster.devices[:1], replace(cluster.devices[1], batch_sizes=(4,)))
    cluster = replace(cluster, devices=(*devices, cluster.devices[2]))
    costs = build_table(graph, cluster, lambda t, d, n: Cost.given(10 * (d + 1) * n), (1, 4))
    usable = usable_devices(graph, cluster, costs)
    # Batches of four only on the second, and from the third nothing comes back.
    assert usable.tolist() == [[True, False, True], [True, False, True], [True, False, False]]
    assert level_weights(graph, cluster, costs).task_ns.tolist() == [20, 20, 10]
    usable = usable_devices(graph, cluster, costs, items=4)
    assert usable.tolist() == [[True, True, True], [True, True, True], [True, True, False]]
    assert level_weights(graph, cluster, costs, items=4).task_ns.tolist() == [20, 20, 15]


def test_an_edge_that_is_given_twice_is_one_edge() -> None:
    dag = Dag.of_edges(3, [1, 0, 1], [2, 2, 2])
    assert (dag.src.tolist(), dag.dst.tolist()) == ([0, 1], [2, 2])
    assert dag.edge_ids([1, 0], [2, 2]).tolist() == [1, 0]
    assert dag.successors(1).tolist() == [2]


def test_edge_to_a_node_that_does_not_exist_is_refused() -> None:
    with pytest.raises(GraphError, match=r"join nodes 0 to 3; expected 0 to 2"):
        Dag.of_edges(3, [0], [3])


def test_weights_of_another_size_are_refused() -> None:
    with pytest.raises(GraphError, match="weights are given for 2 nodes and 1 edges; expected 3"):
        Dag.of_edges(3, [0], [1]).levels([1, 1], [1])


def test_cycle_is_named_by_everything_that_needs_an_order() -> None:
    dag = Dag.of_edges(4, [0, 1, 2, 3], [1, 2, 3, 1])
    assert dag.cycle() == [1, 2, 3]
    for call in (
        dag.breadth_first_order,
        dag.depth_first_order,
        lambda: dag.critical_path_order([0] * 4),
        lambda: dag.levels([0] * 4, [0] * 4),
    ):
        with pytest.raises(GraphError, match="cycle: 1 -> 2 -> 3 -> 1"):
            call()


def test_task_dag_has_no_edges_for_model_inputs() -> None:
    builder = TaskGraphBuilder("inputs")
    x = builder.add_input("x", num_bytes=1)
    for name in "ab":
        builder.add_task(Task(name, "op"), [x])
    graph = builder.finalize([builder.add_tensor("b")])
    assert task_dag(graph).num_edges == 0


def _weights(graph: TaskGraph, cluster: Cluster) -> LevelWeights:
    costs = build_table(graph, cluster, lambda task, device: Cost.given(1))
    weights = level_weights(graph, cluster, costs)
    assert weights.task_ns.dtype == np.int64
    return weights
