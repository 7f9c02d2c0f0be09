"""What a placement is allowed to be, needs copied and fills, in the most obvious form."""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.memory import memory_use


def is_allowed(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, placement: Sequence[int]
) -> bool:
    """Whether every task may run where it is, and tasks of one colocation group are together."""
    groups: dict[str, int] = {}
    for task_id, task in enumerate(graph.tasks):
        device = placement[task_id]
        if costs.run_ns(task_id, device) is None:
            return False
        if task.devices is not None and cluster.devices[device].name not in task.devices:
            return False
        if task.together is not None and groups.setdefault(task.together, device) != device:
            return False
    return True


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


def used_bytes(graph: TaskGraph, cluster: Cluster, placement: Sequence[int]) -> tuple[int, ...]:
    """Bytes in each memory."""
    copies = [(tensor, dst) for tensor, _, dst in copies_of(graph, cluster, placement)]
    return memory_use(graph, cluster, placement, copies)


def fits(graph: TaskGraph, cluster: Cluster, placement: Sequence[int]) -> bool:
    """Whether every memory holds what is in it."""
    used = used_bytes(graph, cluster, placement)
    return all(need <= m.bytes for need, m in zip(used, cluster.memories, strict=True))
