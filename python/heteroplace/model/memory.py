"""The static memory rule: how many bytes a placement needs in each memory (Moirai, eq. 5).

A memory holds the weights of the tasks on its devices, every tensor that is made there or copied
there, and for each of its devices the largest workspace of the tasks on it. The host memory also
holds all model inputs and outputs. Nothing is freed during a run: the rule does not depend on the
order. The core has the same rule in `src/model/memory_use.cc`; a property test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph


def memory_use(
    graph: TaskGraph,
    cluster: Cluster,
    placement: Sequence[int],
    copies: Iterable[tuple[int, int]],
) -> tuple[int, ...]:
    """Return the bytes in use in each memory.

    Parameters
    ----------
    placement
        Device id of each task; negative: not placed, not charged.
    copies
        (tensor id, destination memory id) of each copy.
    """
    used = [0] * len(cluster.memories)
    workspace = [0] * len(cluster.devices)
    present: set[tuple[int, int]] = set()
    if cluster.host is not None:
        present.update((tensor, cluster.host) for tensor in (*graph.inputs, *graph.outputs))
    for task_id, device in enumerate(placement):
        if device < 0:
            continue
        memory = cluster.devices[device].memory
        used[memory] += graph.tasks[task_id].weight_bytes
        workspace[device] = max(workspace[device], graph.tasks[task_id].workspace_bytes)
        present.update((tensor, memory) for tensor in graph.task_outputs[task_id])
    present.update(copies)
    for tensor, memory in present:
        used[memory] += graph.tensors[tensor].bytes
    for device, num_bytes in enumerate(workspace):
        used[cluster.devices[device].memory] += num_bytes
    return tuple(used)
