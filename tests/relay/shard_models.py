"""Small perceptrons and a cluster of one-core devices with a memory each, for sharded models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from relay_models import TARGET, cores
from tvm import relay

import heteroplace
from heteroplace.files.cluster_file import save_cluster
from heteroplace.files.sharding import ShardingRecord
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.relay.annotate.sharded_attribute import read_sharded

WIDTH, LAYERS, BATCH = 16, 4, 8


def rank_cluster(memory_bytes: int = 2**33, num_links: int = 2) -> Cluster:
    """Two devices of one core, each with its memory and known speeds."""
    own = cores()
    devices = tuple(
        Device(
            f"cpu.{rank}",
            "cpu",
            TARGET,
            0,
            rank,
            (own[rank % len(own)],),
            flops_per_second=10**10,
            memory_bytes_per_second=10**10,
            copy_engines=0,
            launch_ns=1000,
        )
        for rank in range(2)
    )
    links = (Link("up", 0, 1, 10**10, 500, "up"), Link("down", 1, 0, 10**10, 500, "down"))
    memories = (Memory("ram0", memory_bytes), Memory("ram1", memory_bytes))
    return Cluster("ranks", memories, devices, links[:num_links], 0)


def built_by_degrees(
    mod: tvm.IRModule, params: Mapping[str, tvm.nd.NDArray], **options: Any
) -> tuple[heteroplace.Executable, ShardingRecord, Mapping[str, np.ndarray]]:
    """Shard a model over `rank_cluster` by estimates and build it: with its plan and state."""
    with tvm.transform.PassContext(opt_level=3):
        shared = heteroplace.shard(mod, rank_cluster(), params=params, costs="estimate", **options)
        executable = heteroplace.build(shared)
    record, state = read_sharded(shared) or pytest.fail("no plan")
    return executable, record, state


def layer_weights(seed: int = 0) -> list[np.ndarray]:
    """Weights [out, in] of each layer."""
    random = np.random.default_rng(seed)
    scale = WIDTH**0.5
    shape = (WIDTH, WIDTH)
    return [(random.standard_normal(shape) / scale).astype("float32") for _ in range(LAYERS)]


def perceptron(rows: int = 1) -> tuple[tvm.IRModule, dict[str, tvm.nd.NDArray]]:
    """Dense layers with rectifiers between them, its weights as parameters."""
    x = value = relay.var("x", shape=(rows, WIDTH))
    params, variables = {}, [x]
    for layer, weight in enumerate(layer_weights()):
        variables.append(relay.var(f"w{layer}", shape=weight.shape))
        params[f"w{layer}"] = tvm.nd.array(weight)
        value = relay.nn.dense(value if layer == 0 else relay.nn.relu(value), variables[-1])
    return tvm.IRModule.from_expr(relay.Function(variables, value)), params


def forward(weights: list[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    """What each layer reads, and the result, in float64."""
    values = [x.astype("float64")]
    for layer, weight in enumerate(weights):
        made = values[-1] @ weight.T
        values.append(made if layer == LAYERS - 1 else np.maximum(made, 0))
    return values


def descend(
    weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray, rate: float
) -> tuple[float, list[np.ndarray]]:
    """A step of gradient descent on sum((p - y)^2) / (2 rows): the loss and the new weights."""
    values = forward(weights, x)
    gradient = (values[-1] - labels) / len(x)
    new = []
    for layer in reversed(range(LAYERS)):
        new.append(weights[layer] - rate * gradient.T @ values[layer])
        gradient = (gradient @ weights[layer]) * (values[layer] > 0)
    return float(((values[-1] - labels) ** 2).sum() / (2 * len(x))), new[::-1]


def rows_of(seed: int) -> np.ndarray:
    """A whole batch."""
    return np.random.default_rng(seed).standard_normal((BATCH, WIDTH)).astype("float32")


def onnx_perceptron(rows: str | int = "N", seed: int = 0) -> onnx.ModelProto:
    """The perceptron as ONNX; `rows` is its number of rows, or the name of what is left free."""
    nodes, tensors, value = [], [], "x"
    for layer, weight in enumerate(layer_weights(seed)):
        tensors.append(numpy_helper.from_array(np.ascontiguousarray(weight.T), f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"z{layer}"]))
        value = f"z{layer}"
        if layer < LAYERS - 1:
            nodes.append(helper.make_node("Relu", [value], [f"a{layer}"]))
            value = f"a{layer}"
    ends = [
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [rows, WIDTH])]
        for name in ("x", value)
    ]
    graph = helper.make_graph(nodes, "mlp", *ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save_files(folder: Path) -> tuple[str, str]:
    """Write the perceptron as ONNX, its rows left free, and the cluster; return their paths."""
    onnx.save(onnx_perceptron(), folder / "mlp.onnx")
    save_cluster(rank_cluster(), folder / "two.json")
    return str(folder / "mlp.onnx"), str(folder / "two.json")
