"""shard_network, shard_training: the tasks of shards, and plans of them."""

from __future__ import annotations

from functools import cache

import pytest
import tvm
from relay_models import var
from tvm import relay

from heteroplace.model.check import check_plan
from heteroplace.model.graph import tensor_bytes
from heteroplace.parts.onnx.importer import from_onnx
from heteroplace.parts.parallel.shard.sharded_graphs import (
    ShardedNetwork,
    shard_network,
    shard_training,
)
from heteroplace.parts.parallel.training import training_step
from heteroplace.parts.parallel.transforms.degrees import Degrees
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.strategy import Strategy, plan_strategy
from heteroplace.relay.expressions import is_primitive_call, post_order, tasks_in
from heteroplace.relay.tasks.prepare import fuse
from tests.unit.transforms.sharded_cases import costs_by_op, ranks
from zoo.models.transformers import gpt_onnx

_LAYERS, _WIDTH, _ROWS = 3, 8, 4
_OPT_LEVEL = {"opt_level": 3}


def perceptron() -> tuple[tvm.IRModule, list[str]]:
    """Three layers whose weights are parameters, and the names of these."""
    value = data = var("x", (_ROWS, _WIDTH))
    parameters = []
    for layer in range(_LAYERS):
        weight, bias = var(f"w{layer}", (_WIDTH, _WIDTH)), var(f"b{layer}", (_WIDTH,))
        parameters += [weight, bias]
        value = relay.nn.relu(relay.nn.bias_add(relay.nn.dense(value, weight), bias))
    function = relay.Function([data, *parameters], value)
    mod = relay.transform.InferType()(tvm.IRModule.from_expr(function))
    return mod, [parameter.name_hint for parameter in parameters]


@cache
def inference(tensor: int) -> ShardedNetwork:
    mod, _ = perceptron()
    with tvm.transform.PassContext(**_OPT_LEVEL):
        return shard_network(mod, tensor=tensor, inputs=["x"])


@cache
def training(tensor: int) -> ShardedNetwork:
    mod, names = perceptron()
    with tvm.transform.PassContext(**_OPT_LEVEL):
        return shard_training(training_step(mod, names), tensor=tensor)


def collectives(sharded: ShardedGraph) -> list[tuple[str, int, bool]]:
    """Op, layer and direction of those over the lanes."""
    return [
        (task.op, sharded.layer[at], sharded.backward[at])
        for at, task in enumerate(sharded.graph.tasks)
        if sharded.lane[at] is None
    ]


def test_tasks_of_inference_name_the_weights_of_their_lanes() -> None:
    found = inference(2).sharded
    graph = found.graph
    by_lane: list[set[tuple[str, int]]] = [set(), set()]
    for at, task in enumerate(graph.tasks):
        if found.lane[at] is not None:
            by_lane[found.lane[at] or 0].update(task.weights)
    half, row = _WIDTH * _WIDTH // 2 * 4, _WIDTH * 4
    # Of the second bias, which is added to a sum, each lane has all.
    assert by_lane[1] == {
        *((f"w{layer}.shard1", half) for layer in range(_LAYERS)),
        ("b0.shard1", row // 2),
        ("b1", row),
        ("b2.shard1", row // 2),
    }
    assert [graph.tensors[tensor].name for tensor in graph.inputs] == ["x"]
    all_reduce, all_gather = "heteroplace.all_reduce", "heteroplace.all_gather"
    assert collectives(found) == [(all_reduce, 1, False), (all_gather, 2, False)]


def test_a_network_of_bound_weights_is_compiled_as_its_graph_says() -> None:
    mod, names = perceptron()
    types = {param.name_hint: param.checked_type for param in mod["main"].params}
    params = {name: tvm.nd.empty([int(extent) for extent in types[name].shape]) for name in names}
    with tvm.transform.PassContext(**_OPT_LEVEL):
        found = shard_network(mod, params, tensor=2)
    assert found.network is not None
    assert found.network.graph == found.sharded.graph
    assert sum(task.weight_bytes for task in found.network.graph.tasks) == 4 * (
        _LAYERS * _WIDTH**2 + _WIDTH + 2 * _WIDTH + _WIDTH
    )


@pytest.mark.costly
@pytest.mark.parametrize("tensor", [1, 2])
def test_gradients_add_up_and_weights_are_state(tensor: int) -> None:
    found = training(tensor).sharded
    graph = found.graph
    state = {graph.tensors[old].name: graph.tensors[new] for old, new in graph.updates}
    suffixes = [""] if tensor == 1 else [".shard0", ".shard1"]
    names = [f"{kind}{layer}" for layer in range(_LAYERS) for kind in "wb"]
    assert sorted(state) == sorted(name + suffix for name in names for suffix in suffixes)
    sums = [task for task in graph.tasks if task.adds]
    assert len(sums) == len(state) + 1  # the loss adds up too
    assert len(graph.outputs) == 1  # the loss
    forward = [at for at, task in enumerate(graph.tasks) if task.adds and not found.backward[at]]
    assert [made for at in forward for made in graph.task_outputs[at]] == list(graph.outputs)
    total = sum(tensor_bytes(made.shape, made.dtype) for made in state.values())
    whole = 4 * _LAYERS * (_WIDTH**2 + _WIDTH)
    # Each lane has a bias of its own where it is added to a sum over the lanes.
    assert total == whole + (tensor - 1) * 4 * _WIDTH


def test_backward_has_an_all_reduce_where_forward_has_columns() -> None:
    all_reduce = "heteroplace.all_reduce"
    # Rows of layer 1, the loss, and the input's gradient of layer 2; that of layer 0 nobody needs.
    expected = [(all_reduce, 1, False), (all_reduce, 3, False), (all_reduce, 2, True)]
    assert collectives(training(2).sharded) == expected


@pytest.mark.parametrize("tensor", [1, 2])
def test_tasks_lie_within_a_layer_also_when_they_are_fused_again(tensor: int) -> None:
    found = training(tensor)
    assert found.network is not None
    again = fuse(found.network.mod)["main"]
    groups = [tasks_in(node.op) for node in post_order(again.body) if is_primitive_call(node)]
    assert all(len(tasks) == 1 for tasks in groups)
    assert sorted(task for (task,) in groups) == sorted(
        task.name for task in found.sharded.graph.tasks
    )


@pytest.mark.parametrize("tensor", [1, 2])
def test_strategies_make_valid_plans_of_a_training_step(tensor: int) -> None:
    sharded = training(tensor).sharded
    for data, pipeline, micro_batches, zero, every in (
        (1, 1, 1, 0, 0),
        (2, 1, 1, 2, 0),
        (1, 3, 2, 0, 0),
        (2, 2, 2, 0, 1),
        (2, 2, 2, 3, 0),
    ):
        degrees = Degrees(data, tensor, pipeline, micro_batches)
        cluster = ranks(degrees.num_devices)
        strategy = Strategy(degrees, "1f1b", zero, every)
        made, plan = plan_strategy(sharded, strategy, cluster)
        check_plan(made.graph, cluster, costs_by_op(made.graph, cluster, {}), plan)


def test_strategies_make_valid_plans_of_inference() -> None:
    sharded = inference(2).sharded
    degrees = Degrees(2, 2, 3, 2)
    cluster = ranks(degrees.num_devices)
    made, plan = plan_strategy(sharded, Strategy(degrees, "gpipe"), cluster)
    check_plan(made.graph, cluster, costs_by_op(made.graph, cluster, {}), plan)


@pytest.mark.costly
def test_a_transformer_without_weights_is_cut() -> None:
    """Its weights are named by the tasks, also those that it transposes first."""
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "tokens": 4, "vocabulary": 12}
    model = from_onnx(gpt_onnx(**sizes, seed=None))
    with tvm.transform.PassContext(**_OPT_LEVEL):
        whole, half = (shard_network(model.mod, tensor=tensor, inputs=["ids"]) for tensor in (1, 2))
    assert [graph.sharded.num_layers for graph in (whole, half)] == [3, 3]
    named = {name: size for task in whole.sharded.graph.tasks for name, size in task.weights}
    # Embeddings, 12 H^2 and biases of the block, the head; norms.
    matrices = 12 * 16 + 4 * 16 + 12 * 16**2 + 16 * 12
    assert sum(named.values()) >= 4 * matrices
    assert [op for op, _, _ in collectives(half.sharded)] == [
        *("heteroplace.all_reduce",) * 2,
        "heteroplace.all_gather",
    ]
