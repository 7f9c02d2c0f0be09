"""Importers of published task graphs: small files made here, and the real ones where they are."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from heteroplace.errors import GraphError
from heteroplace.files.published.dnn_partitioning import import_dnn_partitioning
from heteroplace.files.published.moirai_files import import_moirai
from heteroplace.native.core_loads import placement_loads
from heteroplace.solve import SolveOptions, get_solver
from heteroplace.solve.bounds.paths import find_paths
from heteroplace.solve.problem import Problem
from tests.published_graphs import DNN, MOIRAI, write, write_stand_ins
from tests.reference.brute_force import optimal_makespan
from zoo.graphs.catalogue import (
    GRAPHS_VARIABLE,
    get_instance,
    instances,
    published_folder,
)


def test_nodes_become_tasks_with_groups_and_allowed_devices(tmp_path: Path) -> None:
    found = import_dnn_partitioning(write(tmp_path, DNN))
    tasks = {task.name: task for task in found.graph.tasks}
    assert [device.name for device in found.cluster.devices] == ["acc0", "acc1", "cpu0"]
    assert tasks["c.2"].devices == ("cpu0",)
    assert tasks["a.0"].devices is None and tasks["a.0"].together is None
    assert tasks["b.1"].together == tasks["d.3"].together is not None
    assert tasks["d.3"].weight_bytes == 4000
    row = found.costs.rows[[task.name for task in found.graph.tasks].index("c.2")]
    assert [cost.ns for cost in row] == [None, None, 10_000_000]


def test_edges_of_one_cost_share_a_tensor_and_hops_take_the_published_time(tmp_path: Path) -> None:
    found = import_dnn_partitioning(write(tmp_path, DNN))
    graph, cluster = found.graph, found.cluster
    tensor = next(tensor for tensor in graph.tensors if len(tensor.consumers) == 2)
    acc0, acc1, host = range(3)
    assert cluster.transfer_ns(cluster.route(acc0, host), tensor.bytes) == 2_000_000
    assert cluster.transfer_ns(cluster.route(host, acc1), tensor.bytes) == 2_000_000
    assert cluster.transfer_ns(cluster.route(acc0, acc1), tensor.bytes) == 4_000_000
    assert found.transfer_error_ns == 0
    assert sum(value.bytes for value in graph.tensors) <= 0.001 * 1e6


def test_edges_of_different_cost_are_different_tensors(tmp_path: Path) -> None:
    value = copy.deepcopy(DNN)
    value["edges"][1]["cost"] = 1.0
    found = import_dnn_partitioning(write(tmp_path, value))
    assert [len(ids) for ids in found.graph.task_outputs] == [2, 1, 1, 1]


def test_an_imported_graph_can_be_solved(tmp_path: Path) -> None:
    found = import_dnn_partitioning(write(tmp_path, DNN))
    problem = Problem(found.graph, found.cluster, found.costs)
    result = get_solver("cpsat").solve(problem, SolveOptions(time_limit_s=5))
    # a, then a copy to the host, then c there.
    assert result.objective_ns == 1_000_000 + 2_000_000 + 10_000_000


def test_multiples_of_one_matrix_are_represented_exactly(tmp_path: Path) -> None:
    found = import_moirai(write(tmp_path, MOIRAI))
    graph, cluster = found.graph, found.cluster
    assert found.transfer_error_ns == 0
    assert cluster.congestion == "port"
    times = {
        tensor.name: [
            cluster.transfer_ns(cluster.route(*pair), tensor.bytes) for pair in ((0, 1), (1, 0))
        ]
        for tensor in graph.tensors
        if tensor.consumers
    }
    assert list(times.values()) == [
        [500_000, 1_000_000],
        [1_000_000, 2_000_000],
        [1_500_000, 3_000_000],
    ]


def test_every_edge_is_a_tensor_and_full_memories_stay_just_full(tmp_path: Path) -> None:
    found = import_moirai(write(tmp_path, MOIRAI))
    graph, cluster = found.graph, found.cluster
    assert all(len(tensor.consumers) <= 1 for tensor in graph.tensors)
    tensors = sum(tensor.bytes for tensor in graph.tensors)
    weight = graph.tasks[0].weight_bytes
    large, small = (memory.bytes for memory in cluster.memories)
    assert 2 * weight + tensors <= large < 3 * weight
    assert weight + tensors <= small < 2 * weight


def test_times_that_are_no_products_are_measured_times_of_links(tmp_path: Path) -> None:
    value = copy.deepcopy(MOIRAI)
    value["edges"][2]["transfer_ms"] = [[0.0, 1.5], [1.25, 0.0]]
    found = import_moirai(write(tmp_path, value))
    assert found.transfer_error_ns == 0
    for edge, tensor in zip(value["edges"], found.graph.tensors, strict=False):
        for src, dst in ((0, 1), (1, 0)):
            time_ns = found.cluster.transfer_ns(found.cluster.route(src, dst), tensor.bytes)
            assert time_ns == edge["transfer_ms"][src][dst] * 1e6


def test_transfers_without_time_have_no_bytes_beside_measured_ones(tmp_path: Path) -> None:
    value = copy.deepcopy(MOIRAI)
    value["edges"][0]["transfer_ms"] = [[0.0, 0.0], [0.0, 0.0]]
    value["edges"][2]["transfer_ms"] = [[0.0, 1.5], [1.25, 0.0]]
    found = import_moirai(write(tmp_path, value))
    assert [tensor.bytes for tensor in found.graph.tensors if tensor.consumers] == [0, 2, 1]
    assert found.cluster.transfer_ns(found.cluster.route(0, 1), 0) == 0


def broken(value: dict[str, Any], *changes: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
    value = copy.deepcopy(value)
    for keys, new in changes:
        inner: Any = value
        for key in keys[:-1]:
            inner = inner[key]
        if new is None:
            del inner[keys[-1]]
        else:
            inner[keys[-1]] = new
    return value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([(("nodes", 1, "id"), 0)], r"\$\.nodes\[1\]\.id: id 0 is used twice"),
        ([(("edges", 0, "destId"), 9)], r"\$\.edges\[0\]\.destId: there is no task with id 9"),
        ([(("nodes", 0, "cpuLatency"), -1)], r"cpuLatency: expected a number >= 0, got -1"),
        ([(("nodes",), None)], 'the key "nodes" is missing'),
        ([(("maxCPUs",), 0)], r"no CPU for the nodes that accelerators do not support"),
        ([(("edges", 2), {"sourceId": 1, "destId": 0, "cost": 1})], "has a cycle"),
        ([(("edges", 1, "destId"), 1)], "the edge from 0 to 1 occurs twice"),
        ([(("maxSizePerFPGA",), 1)], "give a larger maxSizePerFPGA"),
    ],
)
def test_faulty_partitioning_files_are_refused(
    tmp_path: Path, changes: list[Any], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        import_dnn_partitioning(write(tmp_path, broken(DNN, *changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([(("devices",), 0)], "at least one device is needed"),
        ([(("tasks", 0, "time_ms"), [1.0])], r"tasks\[0\]\.time_ms: expected a list of 2 numbers"),
        ([(("edges", 0, "transfer_ms"), [[0.0, 1.0]])], r"expected a matrix of 2 x 2 numbers"),
        ([(("edges", 0, "src"), 7)], "there is no task with id 7"),
        ([(("edges", 0, "dst"), 0)], "has a cycle"),
    ],
)
def test_faulty_moirai_files_are_refused(tmp_path: Path, changes: list[Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        import_moirai(write(tmp_path, broken(MOIRAI, *changes)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"none\.json: cannot be read"):
        import_moirai(tmp_path / "none.json")


def test_the_variable_must_name_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(GRAPHS_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(GraphError, match="is no folder"):
        published_folder()
    monkeypatch.setenv(GRAPHS_VARIABLE, str(tmp_path))
    assert not any(name.startswith("published/") for name in instances())


def test_every_published_file_is_an_instance_that_is_solved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Small files of ours under the published names, as the real ones are not everywhere."""
    monkeypatch.setenv(GRAPHS_VARIABLE, str(write_stand_ins(tmp_path)))
    names = [name for name in instances() if name.startswith("published/")]
    assert len(names) == 9
    for name in names:
        problem = get_instance(name).build()
        is_steady = name.endswith("-throughput")
        options = SolveOptions(
            time_limit_s=20, objective="throughput" if is_steady else "latency", threads=1
        )
        result = get_solver("auto").solve(problem, options)
        if is_steady:
            # c is for the CPU, and takes it 10 ms.
            assert result.objective_ns == 10_000_000
            assert 0 <= result.gap < 1e-5
            continue
        optimum = optimal_makespan(problem.graph, problem.cluster, problem.costs)
        assert (result.objective_ns, result.bound_ns) == (optimum, optimum)


@pytest.mark.skipif(GRAPHS_VARIABLE not in os.environ, reason=f"{GRAPHS_VARIABLE} is not set")
def test_published_files_have_their_known_sizes_and_critical_paths() -> None:
    found = {
        name: instance.build()
        for name, instance in instances().items()
        if name.startswith("published/")
    }
    sizes = {name: len(problem.graph.tasks) for name, problem in found.items()}
    assert sizes == {
        "published/bert24-latency": 32,
        "published/resnet50-latency": 177,
        "published/bert_l-6-latency": 418,
        "published/bert24-throughput": 32,
        "published/gnmt-throughput": 96,
        "published/resnet50-throughput": 177,
        "published/bert_l-3-throughput": 235,
        "published/example-1": 14,
        "published/googlenet": 141,
    }
    googlenet = found["published/googlenet"]
    single = get_solver("single").solve(googlenet, SolveOptions())
    assert single.objective_ns == 2_336_000
    assert find_paths(googlenet.native).critical_path_ns == 817_000


@pytest.mark.costly(4)
@pytest.mark.skipif(GRAPHS_VARIABLE not in os.environ, reason=f"{GRAPHS_VARIABLE} is not set")
@pytest.mark.parametrize("solver", ["auto", "cpsat"])
def test_the_optimum_of_the_sample_of_moirai_is_proven(solver: str) -> None:
    problem = get_instance("published/example-1").build()
    result = get_solver(solver).solve(problem, SolveOptions(time_limit_s=20))
    assert (result.objective_ns, result.bound_ns) == (30_000_000, 30_000_000)


def test_a_steady_load_is_run_times_and_transfers_one_after_the_other(tmp_path: Path) -> None:
    """b, and so d, on the other accelerator than a, which costs 2 ms at each end."""
    found = import_dnn_partitioning(write(tmp_path, DNN), is_steady=True)
    problem = Problem(found.graph, found.cluster, found.costs)
    tasks = [task.name for task in found.graph.tasks]
    place = {"a.0": 0, "b.1": 1, "c.2": 2, "d.3": 1}
    loads = placement_loads(problem.native, [place[name] for name in tasks])
    acc0, acc1, cpu0 = loads.busy_ns[: len(found.cluster.units)]
    # a and its copies to the other accelerator and to the host; b, d and the copy of a; c.
    assert (acc0, acc1, cpu0) == (5_000_000, 4_000_000, 10_000_000)
    assert loads.item_ns == 10_000_000
