"""Order-Place (Celeritas, section 5.3): fill one memory after the other in a depth-first order.

Neighbours stay together, so few tensors are copied: where memory is tight this fits when HEFT,
which spreads the tasks, runs out of room for the copies. Used as a start for the search. Unlike
Celeritas the received copies count as memory, and devices of one memory share its tasks: the
fastest device for each task is taken.
"""

from __future__ import annotations

from heteroplace.native.schedule import IMPOSSIBLE, Draft
from heteroplace.solve.base import Problem


def order_place(problem: Problem) -> Draft:
    """Return the plan that fills the memories, fastest first; it may overflow (`violation`).

    Complexity: O(num_tasks * num_devices + reads).
    """
    graph = problem.graph
    filler = _Filler(problem)
    order = depth_first_order(problem)
    for task in order:
        filler.place(task)
    position = {task: index for index, task in enumerate(order)}
    return problem.native.list_schedule(
        filler.placement, [-position[task] for task in range(len(graph.tasks))]
    )


def depth_first_order(problem: Problem) -> list[int]:
    """Return a topological order that goes on with a reader of the latest task if one is ready."""
    graph = problem.graph
    waiting = [len(before) for before in graph.predecessors]
    stack = [task for task in range(len(graph.tasks) - 1, -1, -1) if waiting[task] == 0]
    order = []
    while stack:
        task = stack.pop()
        order.append(task)
        for after in reversed(graph.successors[task]):
            waiting[after] -= 1
            if waiting[after] == 0:
                stack.append(after)
    return order


class _Filler:
    """Room left in each memory, and where tasks and tensors are so far."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        cluster, graph = problem.cluster, problem.graph
        self.placement = [-1] * len(graph.tasks)
        self._room = [memory.bytes for memory in cluster.memories]
        self._kept: set[int] = set()
        if cluster.host is not None:
            self._kept = {*graph.inputs, *graph.outputs}
            self._room[cluster.host] -= sum(graph.tensors[tensor].bytes for tensor in self._kept)
        self._present: set[tuple[int, int]] = set()
        self._workspace = [0] * len(cluster.devices)
        self._group_device: dict[int, int] = {}
        self._groups: dict[int, list[int]] = {}
        for task, group in enumerate(problem.native.task_group):
            if group >= 0:
                self._groups.setdefault(group, []).append(task)
        speed = problem.native.run_ns.sum(axis=0)
        self._memories = sorted(
            range(len(cluster.memories)),
            key=lambda memory: min(
                (
                    int(speed[device])
                    for device in range(len(cluster.devices))
                    if cluster.devices[device].memory == memory
                ),
                default=0,
            ),
        )
        self._current = 0

    def place(self, task: int) -> None:
        """Put the task in the current memory, or the next one with room that can run it."""
        group = self._problem.native.task_group[task]
        if group in self._group_device:
            self._commit(task, self._group_device[group])
            return
        members = self._groups[group] if group >= 0 else [task]
        options = self._memories[self._current :] + self._memories[: self._current]
        choices = []
        for memory in options:
            device = self._fastest(task, memory)
            if device is not None:
                missing = self._bytes_needed(members, device) - self._room[memory]
                choices.append((max(0, missing), device, memory))
        # The first with room; without any the one that lacks least.
        lack, device, memory = min(choices, key=lambda choice: choice[0])
        if lack == 0 and len(choices) == len(options):
            self._current = self._memories.index(memory)
        if group >= 0:
            self._group_device[group] = device
        self._commit(task, device)

    def _fastest(self, task: int, memory: int) -> int | None:
        """The device of the memory that runs the task in least time; None: it cannot be there."""
        run = self._problem.native.run_ns[task]
        devices = [
            device
            for device, value in enumerate(self._problem.cluster.devices)
            if value.memory == memory and run[device] != IMPOSSIBLE
        ]
        return min(devices, key=lambda device: int(run[device]), default=None)

    def _is_charged(self, tensor: int, memory: int) -> bool:
        is_kept = memory == self._problem.cluster.host and tensor in self._kept
        return not is_kept and (tensor, memory) not in self._present

    def _bytes_needed(self, tasks: list[int], device: int) -> int:
        graph = self._problem.graph
        memory = self._problem.cluster.devices[device].memory
        total = 0
        workspace = self._workspace[device]
        tensors: dict[int, None] = {}
        for task in tasks:
            total += graph.tasks[task].weight_bytes
            workspace = max(workspace, graph.tasks[task].workspace_bytes)
            tensors.update(dict.fromkeys(graph.task_outputs[task]))
            tensors.update(dict.fromkeys(graph.task_inputs[task]))
        for tensor in tensors:
            if self._is_charged(tensor, memory) and not self._is_everywhere(tensor):
                total += graph.tensors[tensor].bytes
        return total + workspace - self._workspace[device]

    def _is_everywhere(self, tensor: int) -> bool:
        """Whether it is a model input that costs no memory: without a host they are free."""
        is_input = self._problem.graph.tensors[tensor].producer is None
        return is_input and self._problem.cluster.host is None

    def _commit(self, task: int, device: int) -> None:
        graph = self._problem.graph
        memory = self._problem.cluster.devices[device].memory
        self._room[memory] -= self._bytes_needed([task], device)
        self._workspace[device] = max(self._workspace[device], graph.tasks[task].workspace_bytes)
        for tensor in (*graph.task_outputs[task], *graph.task_inputs[task]):
            self._present.add((tensor, memory))
        self.placement[task] = device
