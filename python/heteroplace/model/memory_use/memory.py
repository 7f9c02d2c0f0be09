"""The static memory rule: how many bytes a plan needs in each memory (Moirai, eq. 5).

A memory holds the weights of the tasks on its devices, every tensor that is made there or copied
there, and for each of its devices the largest workspace of the tasks on it. The host memory also
holds all model inputs and outputs. Nothing is freed during a run: the rule does not depend on the
order. It is enough for a plan to fit; a plan may also fit by lifetime
(`model/memory_use/live_memory.py`). With several items (DiviML, eq. 6) tensors are there once for
each item, a batch needs the workspace of all its items, and weights are there once for each device
that runs the task. A shared tensor is there once each time that it is made anew, state where its
updates are made, and weights that tasks share once in a memory. A routed buffer is there once,
whole, where any of its tensors is; weights that loads bring are there once, and where they are
kept. The core has the same rule in `src/model/memory_use.cc`; a property test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster, Memory
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.live_memory import LivePeak
from heteroplace.model.plan import Copy, Load, Plan, devices_of, guard_of
from heteroplace.model.step_values import (
    Place,
    adds_to,
    loaded_places,
    makes,
    state_places,
    value_bytes,
)


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
            use.add_task(task, device, 1)
            for tensor in graph.task_outputs[task]:
                use.add_tensor(tensor, cluster.devices[device].memory, (0,))
    for tensor, memory in dict.fromkeys(copies):
        use.add_tensor(tensor, memory, (0,))
    return use.total()


def plan_memory_use(graph: TaskGraph, cluster: Cluster, plan: Plan) -> tuple[int, ...]:
    """Return the bytes that a plan needs in each memory. Its steps must name what exists."""
    use = _Use(graph, cluster, plan.items, state_places(graph, cluster, plan.steps))
    use.loaded = loaded_places(plan.steps)
    added: set[Place] = set()
    has_shared = graph.has_shared_values
    for step in plan.steps:
        if isinstance(step, Load):
            for task in step.tasks:
                use.add_loaded(task, step.src, step.dst)
        elif not isinstance(step, Copy):
            size = graph.batch_size(step.task, len(step.items))
            for device in devices_of(step):
                use.add_task(step.task, device, size)
        for tensor, memory in makes(graph, cluster, step):
            is_again = has_shared and adds_to(graph, step, tensor)
            if is_again or guard_of(step) is not None:
                if (tensor, memory) in added:
                    continue
                added.add((tensor, memory))
            use.add_tensor(tensor, memory, step.items)
    return use.total()


class _Use:
    """Adds up the bytes in each memory."""

    def __init__(
        self,
        graph: TaskGraph,
        cluster: Cluster,
        num_items: int,
        states: Sequence[Place] = (),
    ) -> None:
        self._graph = graph
        self._cluster = cluster
        self._used = [0] * len(cluster.memories)
        self._workspace = [0] * len(cluster.devices)
        self._has_weights: set[tuple[int, int]] = set()
        """(task, device) pairs."""
        self._named: set[tuple[str, int]] = set()
        """(weight, memory) pairs."""
        self._buffers: set[tuple[str, int]] = set()
        """(routed buffer, memory) pairs."""
        self.loaded: frozenset[tuple[int, int]] = frozenset()
        """(task, memory) pairs whose weights loads bring."""
        self._kept_in: set[tuple[int, int]] = set()
        """(task, memory) pairs of these weights, where they are charged so far."""
        self._states = frozenset(states)
        self._kept: frozenset[int] = frozenset()
        """Tensors with room set aside in the host memory."""
        for tensor, memory in self._states:
            self._used[memory] += graph.tensors[tensor].bytes
        if cluster.host is not None:
            updated = {tensor for update in graph.updates for tensor in update}
            self._kept = frozenset((*graph.inputs, *graph.outputs)) - updated
            items = range(num_items)
            self._used[cluster.host] += sum(value_bytes(graph, t, items) for t in self._kept)

    def add_task(self, task: int, device: int, batch: int) -> None:
        """Charge weights and workspace of a task that a device runs for a batch of items."""
        memory = self._cluster.devices[device].memory
        task_record = self._graph.tasks[task]
        if (task, device) not in self._has_weights and (task, memory) not in self.loaded:
            self._has_weights.add((task, device))
            self._used[memory] += task_record.weight_bytes
        for name, num_bytes in task_record.weights:
            if (name, memory) not in self._named:
                self._named.add((name, memory))
                self._used[memory] += num_bytes
        workspace = task_record.workspace_bytes * batch
        self._workspace[device] = max(self._workspace[device], workspace)

    def add_loaded(self, task: int, *memories: int) -> None:
        """Charge the weights of a task where they are kept and where a load brings them."""
        for memory in memories:
            if (task, memory) not in self._kept_in:
                self._kept_in.add((task, memory))
                self._used[memory] += self._graph.tasks[task].weight_bytes

    def add_tensor(self, tensor: int, memory: int, items: tuple[int, ...]) -> None:
        """Charge items of a tensor that are made in a memory or copied there."""
        if self._states and (self._graph.state_of.get(tensor), memory) in self._states:
            return  # it takes the place of the state
        buffer = self._graph.tensors[tensor].buffer
        if buffer is not None:
            if (buffer, memory) not in self._buffers:
                self._buffers.add((buffer, memory))
                self._used[memory] += self._graph.buffer_bytes[buffer]
        elif memory != self._cluster.host or tensor not in self._kept:
            tensor_record = self._graph.tensors[tensor]
            self._used[memory] += (
                tensor_record.bytes if tensor_record.shared else tensor_record.bytes * len(items)
            )

    def total(self) -> tuple[int, ...]:
        """Return the bytes in each memory."""
        used = list(self._used)
        for device, num_bytes in enumerate(self._workspace):
            used[self._cluster.devices[device].memory] += num_bytes
        return tuple(used)


def short_memories(cluster: Cluster, peaks: Iterable[LivePeak]) -> list[tuple[Memory, LivePeak]]:
    """Return the memories of less than their peak, with it. `peaks`: one of each memory."""
    pairs = zip(cluster.memories, peaks, strict=True)
    return [(memory, peak) for memory, peak in pairs if peak.num_bytes > memory.bytes]
