"""The static memory rule: how many bytes a plan needs in each memory (Moirai, eq. 5).

A memory holds the weights of the tasks on its devices, every tensor that is made there or copied
there, and for each of its devices the largest workspace of the tasks on it. The host memory also
holds all model inputs and outputs. Nothing is freed during a run: the rule does not depend on the
order. It is enough for a plan to fit, and a plan of several items, of which some are under way at
once, must fit so; a plan of one item may also fit by lifetime (`model/live_memory.py`). With
several items (DiviML, eq. 6) tensors are there once for each item, a batch needs the workspace of
all its items, and weights are there once for each device that runs the task. The core has the same
rule in `src/model/memory_use.cc`; a property test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What one memory holds while a compiled program runs, predicted or measured."""

    weights_bytes: int
    """Constants, in the layouts of the kernels that read them."""
    values_bytes: int
    """The arena of all other tensors, inputs and outputs among them."""
    workspace_bytes: int
    """Scratch memory of the kernels, for all cores together."""

    @property
    def total_bytes(self) -> int:
        """All of it: the peak, as nothing is given back between runs."""
        return self.weights_bytes + self.values_bytes + self.workspace_bytes


def memory_use(
    graph: TaskGraph,
    cluster: Cluster,
    placement: Sequence[int],
    copies: Iterable[tuple[int, int]],
) -> tuple[int, ...]:
    """Return the bytes that a placement of one item needs in each memory.

    Parameters
    ----------
    placement
        Device id of each task; negative: not placed, not charged.
    copies
        (tensor id, destination memory id) of each copy.
    """
    use = _Use(graph, cluster, num_items=1)
    for task, device in enumerate(placement):
        if device >= 0:
            use.add_batch(task, device, 1)
    for tensor, memory in dict.fromkeys(copies):
        use.add_tensor(tensor, memory, 1)
    return use.total()


def plan_memory_use(graph: TaskGraph, cluster: Cluster, plan: Plan) -> tuple[int, ...]:
    """Return the bytes that a plan needs in each memory. Its steps must name what exists."""
    use = _Use(graph, cluster, plan.items)
    for step in plan.steps:
        if isinstance(step, Run):
            use.add_batch(step.task, step.device, len(step.items))
        else:
            use.add_tensor(step.tensor, step.dst, len(step.items))
    return use.total()


class _Use:
    """Adds up the bytes in each memory."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, num_items: int) -> None:
        self._graph = graph
        self._cluster = cluster
        self._used = [0] * len(cluster.memories)
        self._workspace = [0] * len(cluster.devices)
        self._has_weights: set[tuple[int, int]] = set()
        """(task, device) pairs."""
        self._kept: frozenset[int] = frozenset()
        """Tensors with room set aside in the host memory."""
        if cluster.host is not None:
            self._kept = frozenset((*graph.inputs, *graph.outputs))
            kept_bytes = sum(graph.tensors[tensor].bytes for tensor in self._kept)
            self._used[cluster.host] = kept_bytes * num_items

    def add_batch(self, task: int, device: int, num_items: int) -> None:
        """Charge a run and the tensors that it makes."""
        memory = self._cluster.devices[device].memory
        if (task, device) not in self._has_weights:
            self._has_weights.add((task, device))
            self._used[memory] += self._graph.tasks[task].weight_bytes
        workspace = self._graph.tasks[task].workspace_bytes * num_items
        self._workspace[device] = max(self._workspace[device], workspace)
        for tensor in self._graph.task_outputs[task]:
            self.add_tensor(tensor, memory, num_items)

    def add_tensor(self, tensor: int, memory: int, num_items: int) -> None:
        """Charge items of a tensor that are made in a memory or copied there."""
        if memory != self._cluster.host or tensor not in self._kept:
            self._used[memory] += self._graph.tensors[tensor].bytes * num_items

    def total(self) -> tuple[int, ...]:
        """Return the bytes in each memory."""
        used = list(self._used)
        for device, num_bytes in enumerate(self._workspace):
            used[self._cluster.devices[device].memory] += num_bytes
        return tuple(used)
