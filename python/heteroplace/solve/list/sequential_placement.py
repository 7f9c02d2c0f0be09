"""Task graph -> the placement on which a model is measured that no single device can hold.

Celeritas ("Celeritas: Fast Optimizer for Large Dataflow Graphs", section 4.2), step 2 of its
Standard Evaluation: take the tasks in a topological order and fill one device after the other to
its memory limit. As few devices as possible are used, so little is copied while measuring. Its
full system measures on the placement of its own pipeline instead: critical-path order, fusion of
neighbours, Adjusting Placement.

Unlike Celeritas: devices that share a memory (the cores of a CPU) are one device here, the one
with the least total run time; a copied tensor is charged to the memory that it goes to; a task that
may not run on the device being filled goes to the first later one that may run it, else to any;
when all are full, devices that could hold the task alone come first, so that it can be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.coarsen.breakpoints import fuse_segments
from heteroplace.coarsen.coarse import coarsen
from heteroplace.coarsen.joined_groups import join_colocation_groups
from heteroplace.coarsen.levels import level_weights, run_times
from heteroplace.coarsen.topo import ORDERS, order_tasks
from heteroplace.errors import InfeasibleError, SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.solve.feasibility import excess_bytes
from heteroplace.solve.list.adjusting_placement import AdjustingPlacementSolver
from heteroplace.solve.problem import Problem

PIPELINE = "pipeline"
SEQUENTIAL_ORDERS = (*ORDERS, PIPELINE)
"""Orders in which devices are filled: breadth first, depth first, critical path first; and the
whole pipeline of Celeritas."""


@dataclass(frozen=True)
class SequentialPlacement:
    """A placement for measuring; it may overfill memories, which is then said."""

    devices: tuple[int, ...]
    """Device id of each task."""
    order: tuple[int, ...]
    """Task ids in the order in which devices were filled; topological."""
    excess_bytes: dict[str, int]
    """Bytes that memories lack, by name; empty: it fits, or some tensor does not reach a reader. Of
    the pipeline by lifetime, else by the static rule, which no order is needed for."""


def sequential_placement(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, order: str = PIPELINE
) -> SequentialPlacement:
    """Place `graph` on as few devices as its memory needs.

    Parameters
    ----------
    costs
        The rough estimate: which devices can run a task, and how long the paths are.
    order
        One of SEQUENTIAL_ORDERS.

    Raises
    ------
    InfeasibleError
        No device can run some task.
    SolverError
        There is no such order.
    MissingCostError
        A cost is unknown.

    Complexity: O((tasks + reads) * devices) and the sorting of the order.
    """
    if order == PIPELINE:
        return _by_pipeline(graph, cluster, costs)
    if order not in SEQUENTIAL_ORDERS:
        raise SolverError(
            f"no order is called {order!r}; expected one of {', '.join(SEQUENTIAL_ORDERS)}"
        )
    tasks = order_tasks(level_weights(graph, cluster, costs), order).tolist()
    return _Filling(graph, cluster, costs).run(tasks)


def _by_pipeline(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> SequentialPlacement:
    """CPD-TOPO, fusion and Adjusting Placement, and the placement of the groups' members."""
    joined = join_colocation_groups(graph, cluster, costs)
    fused = coarsen(joined, fuse_segments(joined, cluster, costs).groups)
    problem = Problem(fused.graph, cluster, fused.project_costs(costs, cluster))
    plan = AdjustingPlacementSolver().native_plan(problem)
    groups = plan.devices(len(fused.graph.tasks)).tolist()
    order = tuple(task for group in plan.order.tolist() for task in fused.members[group])
    return SequentialPlacement(fused.expand_placement(groups), order, excess_bytes(problem, plan))


class _Filling:
    """Fills the memories, one device of each after the other."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, costs: CostTable) -> None:
        self._graph = graph
        self._cluster = cluster
        self._run_ns = run_times(graph, cluster, costs)
        self._used = [0] * len(cluster.memories)
        self._workspace = [0] * len(cluster.memories)
        self._held: list[set[int]] = [set() for _ in cluster.memories]
        """Tensors that each memory has room for."""
        self._members: dict[str, list[int]] = {}
        for task_id, task in enumerate(graph.tasks):
            if task.together is not None:
                self._members.setdefault(task.together, []).append(task_id)
        if cluster.host is not None:
            self._hold((*graph.inputs, *graph.outputs), cluster.host)

    def run(self, order: Sequence[int]) -> SequentialPlacement:
        devices = [-1] * len(self._graph.tasks)
        sequence = self._device_sequence()
        position = {device: at for at, device in enumerate(sequence)}
        current = 0
        for task in order:
            if devices[task] >= 0:
                continue
            members = self._with_group(task)
            chosen = self._choose(members, sequence, current)
            current = max(current, position[chosen])
            for member in members:
                devices[member] = chosen
                self._charge(member, chosen)
        excess = {
            memory.name: used + workspace - memory.bytes
            for memory, used, workspace in zip(
                self._cluster.memories, self._used, self._workspace, strict=True
            )
            if used + workspace > memory.bytes
        }
        return SequentialPlacement(tuple(devices), tuple(order), excess)

    def _device_sequence(self) -> list[int]:
        """One device of each memory, the fastest first, then the others, for tasks pinned there."""
        is_barred = self._run_ns == IMPOSSIBLE
        num_barred = is_barred.sum(axis=0).tolist()
        total_ns = np.where(is_barred, 0, self._run_ns).sum(axis=0).tolist()
        devices = range(len(self._cluster.devices))
        ranked = sorted(devices, key=lambda device: (num_barred[device], total_ns[device], device))
        first: dict[int, int] = {}
        for device in ranked:
            first.setdefault(self._cluster.devices[device].memory, device)
        chosen = set(first.values())
        return [*first.values(), *(device for device in ranked if device not in chosen)]

    def _choose(self, members: Sequence[int], sequence: list[int], current: int) -> int:
        """The current device while it has room, else the next; if none has, the least full."""
        is_possible = (self._run_ns[list(members)] != IMPOSSIBLE).all(axis=0)
        possible: list[int] = []
        for step in range(len(sequence)):
            device = sequence[(current + step) % len(sequence)]
            if not is_possible[device]:
                continue
            if self._need(members, device) <= self._limit(device):
                return device
            possible.append(device)
        if not possible:
            names = ", ".join(repr(self._graph.tasks[member].name) for member in members[:4])
            raise InfeasibleError(
                f"no device of cluster {self._cluster.name!r} can run {names}; add one that can, "
                f"or change what the tasks are pinned to"
            )
        alone = self._alone(members)
        return min(
            possible,
            key=lambda device: (
                alone > self._limit(device),
                self._relative_use(device),
                device,
            ),
        )

    def _alone(self, members: Sequence[int]) -> int:
        """Bytes that tasks need on a device that holds nothing else."""
        graph = self._graph
        tensors = {t for m in members for t in (*graph.task_inputs[m], *graph.task_outputs[m])}
        return (
            sum(graph.tasks[member].weight_bytes for member in members)
            + max(graph.tasks[member].workspace_bytes for member in members)
            + sum(graph.tensors[tensor].bytes for tensor in tensors)
        )

    def _limit(self, device: int) -> int:
        return self._cluster.memories[self._cluster.devices[device].memory].bytes

    def _relative_use(self, device: int) -> float:
        memory = self._cluster.devices[device].memory
        return (self._used[memory] + self._workspace[memory]) / max(1, self._limit(device))

    def _need(self, members: Sequence[int], device: int) -> int:
        """Bytes in the device's memory once `members` are there too."""
        memory = self._cluster.devices[device].memory
        tensors: set[int] = set()
        weights, workspace = 0, self._workspace[memory]
        for member in members:
            task = self._graph.tasks[member]
            weights += task.weight_bytes
            workspace = max(workspace, task.workspace_bytes)
            tensors |= {*self._graph.task_inputs[member], *self._graph.task_outputs[member]}
        added = sum(self._graph.tensors[tensor].bytes for tensor in tensors - self._held[memory])
        return self._used[memory] + weights + added + workspace

    def _charge(self, task_id: int, device: int) -> None:
        memory = self._cluster.devices[device].memory
        task = self._graph.tasks[task_id]
        self._used[memory] += task.weight_bytes
        self._workspace[memory] = max(self._workspace[memory], task.workspace_bytes)
        self._hold((*self._graph.task_inputs[task_id], *self._graph.task_outputs[task_id]), memory)

    def _hold(self, tensors: Sequence[int], memory: int) -> None:
        for tensor in dict.fromkeys(tensors):
            if tensor not in self._held[memory]:
                self._held[memory].add(tensor)
                self._used[memory] += self._graph.tensors[tensor].bytes

    def _with_group(self, task: int) -> list[int]:
        """The tasks that are placed with it: the memory of all of them is charged at once."""
        group = self._graph.tasks[task].together
        return [task] if group is None else self._members[group]
