"""Layered random DAGs of any size, with costs, as HEFT's study makes them (Topcuoglu et al., 2002).

Tasks lie in layers of equal width; each reads from one task of the layer before and from each
further one with probability `density`. Mean costs are uniform in [0, 2 * mean]; the cost on a
device is uniform in [1 - h/2, 1 + h/2] times that, h the heterogeneity (section 5.1 there, beta).
Tensors are sized so that the mean transfer takes `ccr` times the mean run time. Unlike there, the
layers are equally wide, so that the shape does not change with the size.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from heteroplace.errors import GraphError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder

MEAN_TASK_NS = 1_000_000
_STEP_NS = 500
"""Costs are multiples of it, so that a table of many tasks shares its values."""


@dataclass(frozen=True)
class Layered:
    """Parameters of one graph and of its costs."""

    num_tasks: int
    width: int = 50
    """Tasks per layer; the last layer may have fewer."""
    density: float = 0.04
    """Probability of each further edge from a task of the layer before, in [0, 1]."""
    ccr: float = 0.5
    """Mean transfer time over mean run time, >= 0."""
    heterogeneity: float = 1.0
    """Width of the spread over devices, in [0, 2)."""
    seed: int = 0

    @property
    def name(self) -> str:
        """Short name, e.g. "layered1000"."""
        return f"layered{self.num_tasks}"


def layered_graph(parameters: Layered, cluster: Cluster) -> TaskGraph:
    """Return the graph; its tensors are sized for the mean link of `cluster`.

    Complexity: O(num_tasks * (1 + density * width)).

    Raises
    ------
    GraphError
        A parameter is out of range, or `cluster` has no links while `ccr` > 0.
    """
    _check(parameters, cluster)
    generator = random.Random(f"layered-{parameters.seed}")
    mean_bytes = _mean_bytes(parameters, cluster)
    builder = TaskGraphBuilder(parameters.name)
    last: list[str] = []
    read: set[str] = set()
    tensors: list[str] = []
    for first in range(0, parameters.num_tasks, parameters.width):
        layer = []
        for task in range(first, min(first + parameters.width, parameters.num_tasks)):
            reads = _draw(last, parameters.density, generator)
            read.update(reads)
            name = f"t{task}"
            builder.add_task(Task(name, "task", weight_bytes=mean_bytes), reads)
            num_bytes = round(2 * mean_bytes * generator.random())
            layer.append(builder.add_tensor(name, num_bytes=num_bytes))
        tensors += layer
        last = layer
    return builder.finalize([tensor for tensor in tensors if tensor not in read])


def layered_costs(parameters: Layered, graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return the costs of a graph made by `layered_graph`."""
    generator = random.Random(f"layered-costs-{parameters.seed}")
    spread = parameters.heterogeneity
    shared: dict[int, Cost] = {}
    rows = []
    for _ in graph.tasks:
        mean_ns = 2 * MEAN_TASK_NS * generator.random()
        row = []
        for _ in cluster.devices:
            factor = 1 + spread * (generator.random() - 0.5)
            ns = _STEP_NS * max(1, round(mean_ns * factor / _STEP_NS))
            if ns not in shared:
                shared[ns] = Cost.given(ns)
            row.append(shared[ns])
        rows.append(tuple(row))
    return table_from_rows(graph, cluster, tuple(rows))


def _check(parameters: Layered, cluster: Cluster) -> None:
    limits = (
        ("num_tasks", parameters.num_tasks >= 1, ">= 1"),
        ("width", parameters.width >= 1, ">= 1"),
        ("density", 0 <= parameters.density <= 1, "in [0, 1]"),
        ("ccr", parameters.ccr >= 0, ">= 0"),
        ("heterogeneity", 0 <= parameters.heterogeneity < 2, "in [0, 2)"),
    )
    faults = [
        f"{name} must be {expected}, got {getattr(parameters, name)}"
        for name, is_right, expected in limits
        if not is_right
    ]
    if parameters.ccr > 0 and not cluster.links:
        faults.append(f"ccr must be 0 on cluster {cluster.name!r}, which has no links")
    if faults:
        raise GraphError(f"layered graph: {'; '.join(faults)}")


def _mean_bytes(parameters: Layered, cluster: Cluster) -> int:
    """Bytes whose transfer takes ccr * MEAN_TASK_NS on the mean over all links."""
    if parameters.ccr == 0:
        return 0
    count = len(cluster.links)
    latency_ns = sum(link.latency_ns for link in cluster.links) / count
    ns_per_byte = sum(1e9 / link.bytes_per_second for link in cluster.links) / count
    return max(0, round((parameters.ccr * MEAN_TASK_NS - latency_ns) / ns_per_byte))


def _draw(last: list[str], density: float, generator: random.Random) -> list[str]:
    """One value of the last layer for sure, and each other one with probability `density`."""
    if not last:
        return []
    sure = generator.randrange(len(last))
    return [
        value
        for index, value in enumerate(last)
        if index == sure or (density > 0 and generator.random() < density)
    ]
