"""Plan -> time per item in a steady state without batches.

With many items under way at once, each resource serves the steps of one item after those of
another, in whatever order keeps it busy; so the time per item is the largest sum of durations of
the steps of one item on any resource: a unit of a device, or what copies occupy.
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run


def busy_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> tuple[int, ...]:
    """Return how long one item keeps each resource busy, in ns.

    Units come first, by position in `cluster.units`; then what only copies occupy, by the ids of
    `cluster.link_resources`.

    Raises
    ------
    MissingCostError
        A cost that is needed is unknown.
    """
    count = 1 + max((r for row in cluster.link_resources for r in row), default=-1)
    busy = [0] * max(count, len(cluster.units))
    # Many copies have the same route and size.
    copies: dict[tuple[tuple[int, ...], int], tuple[int, tuple[int, ...]]] = {}
    for step in plan.steps:
        if isinstance(step, Run):
            duration = costs.run_ns(step.task, step.device) or 0
            resources = cluster.unit_ids[step.device]
        else:
            key = (step.route, graph.tensors[step.tensor].bytes)
            if key not in copies:
                occupied = [r for link in step.route for r in cluster.link_resources[link]]
                copies[key] = (cluster.transfer_ns(*key), tuple(dict.fromkeys(occupied)))
            duration, resources = copies[key]
        for resource in resources:
            busy[resource] += duration
    return tuple(busy)


def throughput_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> int:
    """Return the time per item of `plan` in ns; 1e9 over it is the throughput in items per second.

    Raises
    ------
    MissingCostError
        A cost that is needed is unknown.
    """
    return max(busy_ns(graph, cluster, costs, plan), default=0)
