"""Time per item of placements, and its least value by trying every placement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory import memory_use


def copies_of(
    graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> list[tuple[int, int, int]]:
    """(tensor, home, destination) of every copy that a placement needs, one per memory."""
    memory = [cluster.devices[device].memory for device in placement]
    copies = []
    for tensor_id, tensor in enumerate(graph.tensors):
        home = cluster.host if tensor.producer is None else memory[tensor.producer]
        if home is None:
            continue
        wanted = {memory[task] for task in tensor.consumers}
        if tensor_id in graph.outputs and cluster.host is not None:
            wanted.add(cluster.host)
        copies.extend((tensor_id, home, dst) for dst in sorted(wanted - {home}))
    return copies


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


def used_bytes(graph: TaskGraph, cluster: Cluster, placement: Sequence[int]) -> tuple[int, ...]:
    """Bytes in each memory."""
    copies = [(tensor, dst) for tensor, _, dst in copies_of(graph, cluster, placement)]
    return memory_use(graph, cluster, placement, copies)


def is_allowed(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, placement: Sequence[int]
) -> bool:
    """Whether every task may run where it is, and tasks of one label are together."""
    labels: dict[str, int] = {}
    for task_id, task in enumerate(graph.tasks):
        device = placement[task_id]
        if costs.run_ns(task_id, device) is None:
            return False
        if task.devices is not None and cluster.devices[device].name not in task.devices:
            return False
        if task.together is not None and labels.setdefault(task.together, device) != device:
            return False
    return True


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
        used = used_bytes(graph, cluster, placement)
        if all(need <= m.bytes for need, m in zip(used, cluster.memories, strict=True)):
            best = item_ns
    return best
