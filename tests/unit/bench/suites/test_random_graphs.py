"""Randomly wired stacks and layered graphs: structure, seeds, costs."""

from __future__ import annotations

import sys

import pytest

from heteroplace.errors import GraphError, MissingPackageError
from heteroplace.model.graph import TaskGraph
from zoo.graphs.clusters import divi_node, inter_server
from zoo.graphs.layered import Layered, layered_costs, layered_graph
from zoo.graphs.rwnn import (
    DEVICE_RATIOS,
    MEAN_TASK_NS,
    RwnnStack,
    rwnn_costs,
    rwnn_graph,
)


def sources(graph: TaskGraph) -> list[str]:
    return [graph.tasks[i].name for i, before in enumerate(graph.predecessors) if not before]


def sinks(graph: TaskGraph) -> list[str]:
    return [graph.tasks[i].name for i, after in enumerate(graph.successors) if not after]


@pytest.mark.parametrize("kind", ["ws", "er", "ba"])
@pytest.mark.parametrize("nodes", [10, 32])
@pytest.mark.parametrize("seed", range(5))
def test_a_module_has_one_source_and_one_sink(kind: str, nodes: int, seed: int) -> None:
    graph = rwnn_graph(RwnnStack(kind, nodes, seed=seed))
    assert len(graph.tasks) == nodes + 2
    assert sources(graph) == ["module0.in0"]
    assert sinks(graph) == ["module0.out0"]


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("is_strong", [True, False])
def test_a_stack_has_its_channels_between_all_modules(channels: int, is_strong: bool) -> None:
    graph = rwnn_graph(RwnnStack("er", 10, 5, channels, is_strong))
    assert len(graph.tasks) == 5 * (10 + 2 * channels)
    assert len(graph.inputs) == len(graph.outputs) == channels
    task = {value.name: index for index, value in enumerate(graph.tasks)}
    for module in range(1, 5):
        for channel in range(channels):
            before = graph.predecessors[task[f"module{module}.in{channel}"]]
            assert [graph.tasks[i].name for i in before] == [f"module{module - 1}.out{channel}"]
            assert graph.successors[task[f"module{module}.in{channel}"]]


@pytest.mark.parametrize("seed", range(5))
def test_strong_dependence_leaves_no_end_without_a_channel(seed: int) -> None:
    graph = rwnn_graph(RwnnStack("er", 10, 5, 3, True, seed))
    assert all(name.startswith("module0.in") for name in sources(graph))
    assert all(name.startswith("module4.out") for name in sinks(graph))


def test_weak_dependence_leaves_some_ends_without_a_channel() -> None:
    graph = rwnn_graph(RwnnStack("er", 10, 20, 2, False))
    assert any(".node" in name for name in sources(graph))


def test_equal_seeds_give_equal_stacks_and_other_seeds_others() -> None:
    graphs = [rwnn_graph(RwnnStack("ws", 32, 2, seed=seed)).digest() for seed in (1, 1, 2)]
    assert graphs[0] == graphs[1] != graphs[2]


def test_costs_have_the_published_mean_ratios_and_spread() -> None:
    graph, cluster = rwnn_graph(RwnnStack("er", 32, 2)), divi_node()
    costs = rwnn_costs(graph, cluster)
    assert costs == rwnn_costs(graph, cluster) != rwnn_costs(graph, cluster, seed=1)
    totals = [sum(row[device].ns for row in costs.rows) for device in range(3)]
    expected = [DEVICE_RATIOS[device.name] for device in cluster.devices]
    assert [total / totals[2] for total in totals] == pytest.approx(expected, rel=1e-5)
    assert totals[2] == pytest.approx((64 + 4 * 0.1) * MEAN_TASK_NS, rel=1e-5)
    ratios = sorted(row[1].ns / row[2].ns for row in costs.rows)
    assert ratios[0] < 1 < 2 < ratios[-1]


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        (RwnnStack("tree", 10), "no random graph 'tree'"),
        (RwnnStack("ba", 5), "needs >= 6 nodes"),
        (RwnnStack("er", 10, 0), ">= 1 modules"),
    ],
)
def test_impossible_stacks_are_refused(stack: RwnnStack, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        rwnn_graph(stack)


def test_without_networkx_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingPackageError, match=r"pip install networkx"):
        rwnn_graph(RwnnStack("er", 10))


def test_costs_are_for_known_devices_only() -> None:
    with pytest.raises(GraphError, match="no mean ratio is known for device A, B, C, D"):
        rwnn_costs(rwnn_graph(RwnnStack("er", 10)), inter_server())


def test_layers_read_only_from_the_layer_before() -> None:
    parameters = Layered(103, width=10, density=0.3)
    graph = layered_graph(parameters, inter_server())
    assert len(graph.tasks) == 103
    layer = [int(task.name[1:]) // 10 for task in graph.tasks]
    for task, before in enumerate(graph.predecessors):
        assert bool(before) == (layer[task] > 0)
        assert all(layer[source] == layer[task] - 1 for source in before)


def test_layered_edges_transfers_and_spread_are_as_asked() -> None:
    cluster = inter_server()
    parameters = Layered(5_000, width=20, density=0.1, ccr=2.0, heterogeneity=0.5)
    graph = layered_graph(parameters, cluster)
    costs = layered_costs(parameters, graph, cluster)
    edges = sum(len(tensor.consumers) for tensor in graph.tensors)
    assert edges / 4_980 == pytest.approx(1 + 0.1 * 19, rel=0.05)
    links = [(link,) for link in range(len(cluster.links))]
    transfers = [
        cluster.transfer_ns(link, tensor.bytes) for tensor in graph.tensors for link in links
    ]
    runs = [cost.ns for row in costs.rows for cost in row]
    ratio = (sum(transfers) / len(transfers)) / (sum(runs) / len(runs))
    assert ratio == pytest.approx(2.0, rel=0.05)
    # Over four devices times lie within [0.75, 1.25] of the mean, up to rounding.
    spreads = [
        max(row, key=lambda c: c.ns).ns / min(row, key=lambda c: c.ns).ns for row in costs.rows
    ]
    assert sorted(spreads)[len(spreads) // 2] < 5 / 3


def test_layered_graphs_depend_on_the_seed_alone() -> None:
    cluster = inter_server()
    first, again = (layered_graph(Layered(200), cluster) for _ in range(2))
    assert first.digest() == again.digest()
    assert first.digest() != layered_graph(Layered(200, seed=1), cluster).digest()


def test_layered_parameters_are_checked_all_at_once() -> None:
    with pytest.raises(GraphError, match=r"width must be >= 1, got 0; density .* got 2"):
        layered_graph(Layered(10, width=0, density=2), inter_server())
