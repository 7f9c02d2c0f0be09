"""Time per item of placements, and its least value by trying every placement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from tests.reference.placements import copies_of, fits, is_allowed


def busy_times(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, placement: Sequence[int]
) -> dict[int, int] | None:
    """Busy time per item of each resource that is used; None if a copy has no route."""
    busy: dict[int, int] = {}
    for task, device in enumerate(placement):
        for unit in cluster.unit_ids[device]:
            busy[unit] = busy.get(unit, 0) + (costs.run_ns(task, device) or 0)
    for tensor, src, dst in copies_of(graph, cluster, placement):
        if not cluster.is_reachable(src, dst):
            return None
        route = cluster.route(src, dst)
        duration = cluster.transfer_ns(route, graph.tensors[tensor].bytes)
        for resource in {r for link in route for r in cluster.link_resources[link]}:
            busy[resource] = busy.get(resource, 0) + duration
    return busy


def least_item_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> int | None:
    """The least time per item over all placements that fit; None: none fits."""
    best: int | None = None
    for placement in itertools.product(range(len(cluster.devices)), repeat=len(graph.tasks)):
        if not is_allowed(graph, cluster, costs, placement):
            continue
        busy = busy_times(graph, cluster, costs, placement)
        if busy is None:
            continue
        item_ns = max(busy.values(), default=0)
        if best is not None and item_ns >= best:
            continue
        if fits(graph, cluster, placement):
            best = item_ns
    return best
