"""Weights -> groups that are segments of a topological order, with the least cut between them.

Celeritas, section 5.1, equations 4 to 6 and algorithm 1, DOI 10.48550/arXiv.2208.00184 (Kernighan's
optimal sequential partition). Segments of a topological order cannot make a cycle, whatever the
graph. The dynamic programme is O(m + R n) in the core.

Unlike Celeritas: a task larger than the limit of a group is a group of its own; a segment ends
where no device is left that can run all of it, and where the colocation group changes, so that
every group can be placed; R has a default that leaves about eight groups per device.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heteroplace.coarsen.levels import LevelWeights, level_weights, usable_devices
from heteroplace.coarsen.topo import order_tasks
from heteroplace.errors import SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_arrays import group_ids
from heteroplace.native.core_graph import IntArray, SegmentRules


@dataclass(frozen=True)
class BreakpointOptions:
    """How far fusion goes. Checked on construction: SolverError."""

    max_tasks: int | None = None
    """R of Celeritas, most tasks in a group; None: see `default_max_tasks`."""
    max_bytes: int | None = None
    """Mc of Celeritas, most bytes in a group; None: a quarter of the smallest device's memory."""
    order: str = "cpd"
    """Which order is cut; see `heteroplace.coarsen.topo`."""

    def __post_init__(self) -> None:
        max_tasks = 1 if self.max_tasks is None else self.max_tasks
        max_bytes = 0 if self.max_bytes is None else self.max_bytes
        if max_tasks < 1 or max_bytes < 0:
            raise SolverError(
                f"a group may have {max_tasks} tasks and {max_bytes} bytes; expected max_tasks "
                f">= 1 and max_bytes >= 0"
            )


@dataclass(frozen=True)
class Segments:
    """An order of tasks cut into groups."""

    groups: tuple[tuple[int, ...], ...]
    """Task ids of each group, in the order that was cut."""
    cut_ns: int
    """Weight of the edges between groups; no other cuts within the limits have less."""


def fuse_segments(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    options: BreakpointOptions | None = None,
    *,
    items: int = 1,
) -> Segments:
    """Return the groups of Optimal Operation Fusion; give them to `coarsen`.

    Parameters
    ----------
    items
        Of the plans that are made, as of `levels.run_times`.

    Raises
    ------
    SolverError
        There is no such order.
    InfeasibleError
        No device can run some task.
    MissingCostError
        A cost is unknown.
    """
    options = options or BreakpointOptions()
    weights = level_weights(graph, cluster, costs, items=items)
    max_tasks = options.max_tasks
    if max_tasks is None:
        max_tasks = default_max_tasks(len(graph.tasks), len(cluster.devices))
    max_bytes = options.max_bytes
    if max_bytes is None:
        max_bytes = default_max_bytes(cluster)
    rules = SegmentRules(
        max_tasks,
        max_bytes,
        task_bytes(graph),
        np.array(group_ids(graph), dtype=np.int64),
        usable_devices(graph, cluster, costs, items=items),
    )
    return cut_order(weights, order_tasks(weights, options.order), rules)


def cut_order(weights: LevelWeights, order: IntArray, rules: SegmentRules) -> Segments:
    """Cut any topological order; ties: the earlier preceding cut, so fewer and larger groups.

    Raises
    ------
    GraphError
        `order` is not a topological order of the graph.
    """
    starts, cut_ns = weights.dag.cut_into_segments(order, weights.edge_ns, rules)
    tasks = order.tolist()
    ends = [*starts, len(tasks)]
    return Segments(tuple(tuple(tasks[begin:end]) for begin, end in pairwise(ends)), cut_ns)


def default_max_tasks(num_tasks: int, num_devices: int) -> int:
    """R, when it is not given: about eight groups per device, at most 200 tasks in one.

    >>> default_max_tasks(6332, 4), default_max_tasks(3810, 4), default_max_tasks(5, 4)
    (198, 119, 1)
    """
    target_groups = 8 * num_devices
    return min(200, max(1, (2 * num_tasks + target_groups) // (2 * target_groups)))


def default_max_bytes(cluster: Cluster) -> int:
    """Mc, when it is not given: a quarter of the smallest memory that a device has."""
    return min(cluster.memories[device.memory].bytes for device in cluster.devices) // 4


def task_bytes(graph: TaskGraph) -> IntArray:
    """Return for each task its weights, its workspace and all that it makes, in bytes."""
    sizes = np.array([task.weight_bytes + task.workspace_bytes for task in graph.tasks], np.int64)
    for tensor in graph.tensors:
        if tensor.producer is not None:
            sizes[tensor.producer] += tensor.bytes
    return sizes
