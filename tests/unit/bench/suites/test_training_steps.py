"""Training graphs at Celeritas' sizes: gradients, updates, colocation, what is kept until when."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.exact.paper import CELERITAS_FUSION
from heteroplace.model.graph import TaskGraph
from zoo.graphs.clusters import celeritas_node
from zoo.graphs.training import OP_CLASSES, Network, training_costs
from zoo.graphs.training_networks import TRAINED, holography, inception_v3
from zoo.graphs.training_sequences import nmt, transformer

SMALL = {
    "holography": lambda: holography(2, 4),
    "inception-v3": lambda: inception_v3(2),
    "nmt": lambda: nmt(2, 3, 2, 8),
    "transformer": lambda: transformer(2, 4, 2, 2, 8),
}


def dense_step() -> TaskGraph:
    """y = relu(x w + b), loss(y)."""
    network = Network("dense")
    x = network.input("x", (2, 3))
    w, b = network.variable("w", (3, 4)), network.variable("b", (4,))
    y = network.add("matmul", [x, w], (2, 4), flops=48)
    y = network.add("relu", [network.add("bias_add", [y, b], (2, 4))], (2, 4))
    return network.training_graph([network.add("loss", [y], (1,))])


def reads_of(graph: TaskGraph, name: str) -> set[str]:
    """The names of what the task reads, without constants."""
    [task] = [index for index, one in enumerate(graph.tasks) if one.name == name]
    names = (graph.tensors[tensor].name for tensor in graph.task_inputs[task])
    return {one for one in names if not one.startswith("constant")}


def test_each_gradient_reads_what_its_op_needs() -> None:
    graph = dense_step()
    assert reads_of(graph, "grad/relu_1") == {"grad/loss_1.0", "relu_1.0"}
    assert reads_of(graph, "grad/bias_add_2") == {"grad/relu_1.0"}
    # x is no variable's: there is a gradient of the weights alone.
    assert reads_of(graph, "grad/matmul_1") == {"x", "dependency_1.0"}
    assert not any(task.name == "grad/matmul_2" for task in graph.tasks)
    flops = {task.name: task.flops for task in graph.tasks}
    assert flops["matmul_1"] == flops["grad/matmul_1"] == 48


def test_a_variable_its_slots_and_its_update_are_one_group() -> None:
    graph = dense_step()
    groups = {label: set[str]() for label in ("w", "b")}
    for task in graph.tasks:
        if task.together is not None:
            groups[task.together].add(task.name)
    parts = ("", "/read", "/slot0", "/slot0/read", "/slot1", "/slot1/read", "/update")
    assert groups == {label: {f"{label}{part}" for part in parts} for label in groups}
    resident = {task.name: task.weight_bytes for task in graph.tasks if task.weight_bytes}
    assert resident == {f"w/slot{i}": 48 for i in (0, 1)} | {f"b/slot{i}": 16 for i in (0, 1)}
    assert {"w.0", "w/slot0/read.0", "w/slot1/read.0"} < reads_of(graph, "w/update")


def test_a_value_with_two_readers_gets_the_sum_of_both_gradients() -> None:
    network = Network("shared")
    w = network.variable("w", (4,))
    x = network.add("relu", [w], (4,))
    y = network.add("add", [network.add("tanh", [x], (4,)), x], (4,))
    graph = network.training_graph([network.add("loss", [y], (1,))])
    [total] = [task.name for task in graph.tasks if task.op == "add_n"]
    assert {name.partition("_")[0] for name in reads_of(graph, total)} == {
        "grad/tanh",
        "dependency",
    }


@pytest.mark.parametrize("name", SMALL)
def test_every_variable_is_updated_once(name: str) -> None:
    graph = SMALL[name]()
    trained = {task.together for task in graph.tasks if task.name.endswith("/slot0")}
    updated = Counter(task.together for task in graph.tasks if task.op == "apply_adam")
    assert updated == dict.fromkeys(trained, 1)
    made = {task.name for task in graph.tasks if task.name.endswith("/update")}
    assert made <= {graph.tensors[tensor].name.removesuffix(".0") for tensor in graph.outputs}
    assert {task.op for task in graph.tasks} <= set(OP_CLASSES)


@pytest.mark.parametrize("name", ["holography", "inception-v3"])
def test_graphs_have_about_the_nodes_of_the_paper(name: str) -> None:
    graph = TRAINED[name]()
    assert len(graph.tasks) == pytest.approx(CELERITAS_FUSION[name]["tasks"], rel=0.1)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["nmt", "transformer"])
def test_large_graphs_have_about_the_nodes_of_the_paper(name: str) -> None:
    graph = TRAINED[name]()
    assert len(graph.tasks) == pytest.approx(CELERITAS_FUSION[name]["tasks"], rel=0.1)


def test_views_cost_a_launch_and_products_their_arithmetic() -> None:
    graph, cluster = dense_step(), celeritas_node()
    costs = training_costs(graph, cluster)
    by_name = {task.name: costs.run_ns(index, 0) for index, task in enumerate(graph.tasks)}
    assert by_name["w/read"] == by_name["constant_1"] == cluster.devices[0].launch_ns + 1
    inception = inception_v3(512)
    times = training_costs(inception, cluster)
    total = sum(times.run_ns(task, 0) or 0 for task in range(len(inception.tasks)))
    flops = sum(task.flops for task in inception.tasks)
    # 11.4 GFLOP of an image forward (Szegedy et al.), as much for both kinds of gradients each.
    assert flops / 512 == pytest.approx(3 * 11.4e9, rel=0.1)
    peak = cluster.devices[0].flops_per_second or 0
    assert total > flops / peak * 1e9


def test_gradients_share_the_group_of_their_op_if_asked() -> None:
    network = Network("shared")
    w = network.variable("w", (4,))
    x = network.add("relu", [w], (4,))
    y = network.add("multiply", [network.add("tanh", [x], (4,)), x], (4,))
    graph = network.training_graph([network.add("loss", [y], (1,))], colocates_gradients=True)
    group_of = {task.name: task.together for task in graph.tasks}
    assert group_of["grad/tanh_1"] == group_of["tanh_1"] == "tanh_1"
    # The gradient of a broadcast product: its views, axes and constants, too.
    of_product = {name for name, group in group_of.items() if group == "multiply_1"}
    assert {"multiply_1", "grad/multiply_1", "grad/multiply_2", "axes_1"} < of_product
    assert {"sum_view_1", "reshape_view_1", "dependency_1"} < of_product
    # x has two readers; the sum of their gradients is with the product, whose gradient came first.
    assert group_of["sum_1"] == "multiply_1"
    assert group_of["w/update"] == group_of["w"] == "w"
    assert [name for name, group in group_of.items() if group is None] == ["constant_1"]
