"""Many small colocation groups -> fewer: groups that an order meets one after the other are one.

A training graph has a colocation group for each variable. As two groups never share a segment,
fusion would keep as many segments as there are variables; Celeritas (section 5, DOI
10.48550/arXiv.2208.00184), whose graphs of 6,332 to 36,352 nodes shrink to 37 to 220, must have had
variables of many groups in one. Here groups are joined before the order is cut: those whose first
tasks stand within R places of the order, as long as all tasks of the joined group are at most Mc
bytes and have a device in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heteroplace.coarsen.breakpoints import (
    BreakpointOptions,
    default_max_bytes,
    default_max_tasks,
    task_bytes,
)
from heteroplace.coarsen.levels import level_weights, usable_devices
from heteroplace.coarsen.topo import order_tasks
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_graph import BoolArray


@dataclass
class _Joined:
    """A group that others join."""

    name: str
    start: int
    """Place of its first task in the order."""
    num_bytes: int
    devices: BoolArray


def join_colocation_groups(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    options: BreakpointOptions | None = None,
) -> TaskGraph:
    """Return the graph with colocation groups joined; what must share a device still does.

    Parameters
    ----------
    options
        R, Mc and the order, as of `fuse_segments`.

    Raises
    ------
    SolverError, InfeasibleError, MissingCostError
        As `fuse_segments`.
    """
    options = options or BreakpointOptions()
    labels = [task.together for task in graph.tasks]
    if len({*labels} - {None}) < 2:
        return graph
    window = options.max_tasks
    if window is None:
        window = default_max_tasks(len(graph.tasks), len(cluster.devices))
    limit = default_max_bytes(cluster) if options.max_bytes is None else options.max_bytes
    num_bytes = dict.fromkeys(labels, 0)
    for label, size in zip(labels, task_bytes(graph).tolist(), strict=True):
        num_bytes[label] += size
    usable = usable_devices(graph, cluster, costs)
    order = order_tasks(level_weights(graph, cluster, costs), options.order).tolist()
    joined: dict[str, str] = {}
    current: _Joined | None = None
    for place, task in enumerate(order):
        label = labels[task]
        if label is None or label in joined:
            continue
        size = num_bytes[label]
        if (
            current is not None
            and place - current.start < window
            and current.num_bytes + size <= limit
            and (current.devices & usable[task]).any()
        ):
            current.num_bytes += size
            current.devices = current.devices & usable[task]
        else:
            current = _Joined(label, place, size, usable[task])
        joined[label] = current.name
    tasks = (
        task if task.together is None else replace(task, together=joined[task.together])
        for task in graph.tasks
    )
    return replace(graph, tasks=tuple(tasks))
