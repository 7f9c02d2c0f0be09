"""Clusters of ranks, perceptrons on them, and what these compute without any sharding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.parts.parallel.transforms.assemble import assemble
from heteroplace.parts.parallel.transforms.mlp import Mlp
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph
from heteroplace.parts.parallel.transforms.strategy import Strategy, rewrite
from tests.reference.distir.dispatch import split_op
from tests.strategies import AMPLE

Array = np.ndarray[Any, np.dtype[Any]]
BATCHES = (1, 2, 4)
"""Items that a device runs together, as it may for sums over microbatches."""


def ranks(
    number: int,
    latency_ns: int = 0,
    copy_engines: int | None = None,
    host: int | None = None,
) -> Cluster:
    """Devices with a memory each, all linked; a transfer takes its latency, whatever its bytes."""
    pairs = [(src, dst) for src in range(number) for dst in range(number) if src != dst]
    return Cluster(
        "ranks",
        tuple(Memory(f"m{i}", AMPLE) for i in range(number)),
        tuple(
            Device(f"d{i}", "cuda", "", i, i, copy_engines=copy_engines, batch_sizes=BATCHES)
            for i in range(number)
        ),
        tuple(
            Link(f"{s}-{d}", s, d, 10**9, latency_ns, f"{s}-{d}", ((1 << 40, 0),)) for s, d in pairs
        ),
        host,
    )


def costs_by_op(graph: TaskGraph, cluster: Cluster, op_ns: Mapping[str, int]) -> CostTable:
    """Times by the op's name, 0 for those not named, and the same for any batch."""

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        return Cost.given(op_ns.get(split_op(graph.tasks[task].op)[0], 0))

    return build_table(graph, cluster, cost, BATCHES)


def training(
    strategy: Strategy, batch: int, num_layers: int = 4, width: int = 8, **options: Any
) -> ShardedGraph:
    """A step of gradient descent in float64, rewritten."""
    degrees = strategy.degrees
    dtype = options.pop("dtype", "float64")
    mlp = Mlp(num_layers, width, degrees.rows(batch), degrees.tensor, dtype)
    return rewrite(mlp.training(batch, **options), strategy)


def plan_of(sharded: ShardedGraph, strategy: Strategy, cluster: Cluster, **options: Any) -> Plan:
    """Of a graph that is rewritten already."""
    degrees, schedule = strategy.degrees, strategy.schedule
    options.setdefault("early_updates", range(degrees.pipeline) if strategy.zero >= 2 else ())
    return assemble(sharded, cluster, degrees, schedule, **options)


def sums_of(sharded: ShardedGraph) -> frozenset[str]:
    """The tasks that add up over microbatches."""
    return frozenset(task.name for task in sharded.graph.tasks if task.adds)


def random_arrays(
    num_layers: int, width: int, batch: int, seed: int = 0, dtype: str = "float64"
) -> dict[str, Array]:
    """Weights that keep about half of the rectifiers open, and a batch with its targets."""
    rng = np.random.default_rng(seed)
    found = {f"w{i}": rng.normal(0, width**-0.5, (width, width)) for i in range(num_layers)}
    found |= {name: rng.normal(0, 1, (batch, width)) for name in "xy"}
    return {name: array.astype(dtype) for name, array in found.items()}


def forward(arrays: Mapping[str, Array], num_layers: int) -> list[Array]:
    """What goes into each layer, and what comes out of the last."""
    values = [arrays["x"]]
    for layer in range(num_layers):
        values.append(np.maximum(values[-1] @ arrays[f"w{layer}"], 0))
    return values


def sgd_step(arrays: Mapping[str, Array], num_layers: int, rate: float = 0.1) -> dict[str, Array]:
    """The weights after one step, of the unsharded network on the whole batch."""
    values = forward(arrays, num_layers)
    gradient = (values[-1] - arrays["y"]) / len(arrays["x"])
    found = {}
    for layer in reversed(range(num_layers)):
        dz = gradient * (values[layer + 1] > 0)
        found[f"w{layer}"] = arrays[f"w{layer}"] - rate * (values[layer].T @ dz)
        gradient = dz @ arrays[f"w{layer}"].T
    return found


def worst_difference(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest of all weights."""
    assert set(found) == set(expected)
    return max(float(np.abs(found[name] - expected[name]).max()) for name in expected)


def with_op(sharded: ShardedGraph, change: Callable[[str], str]) -> ShardedGraph:
    """The graph with other ops."""
    graph = sharded.graph
    tasks = tuple(replace(task, op=change(task.op)) for task in graph.tasks)
    return replace(sharded, graph=replace(graph, tasks=tasks))
