"""Rows + plan -> items: every kernel call and every copy, in one global order.

The plan says where each task runs and in which order; the rows say what really depends on what
once layouts are chosen. The order is topological for the rows and otherwise follows the plan, so
each queue of the program, which is a part of it, can never wait for itself.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from heteroplace.codegen.kernels import Rows
from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.timeline import Timeline

Instance = tuple[int, int]
"""A value in a memory: (value, memory). Aliases count as the value whose bytes they share."""


@dataclass(frozen=True)
class Item:
    """One kernel call or one copy."""

    row: int | None
    """Position of the kernel call in the rows; None: a copy."""
    device: int | None
    """Device that runs the kernel; None: a copy."""
    route: tuple[int, ...]
    """Links that the copy takes; empty for a kernel call."""
    step: int
    """Position of the plan's step that it carries out."""
    start_ns: int
    """Predicted start; 0 if nothing is predicted."""
    finish_ns: int
    """Predicted finish; 0 if nothing is predicted."""
    reads: tuple[Instance, ...]
    """Weights are not among them."""
    writes: tuple[Instance, ...]


def root(rows: Rows, value: int) -> int:
    """Return the value that owns the bytes of `value`."""
    while (alias_of := rows.values[value].alias_of) is not None:
        value = alias_of
    return value


def order_items(
    rows: Rows, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline | None
) -> tuple[Item, ...]:
    """List kernel calls and copies in an order that respects dependencies and follows the plan.

    Raises
    ------
    LoweringError
        A row belongs to a task that the plan does not know.
    """
    return _Orderer(rows, graph, cluster, plan, predicted).run()


class _Orderer:
    def __init__(
        self, rows: Rows, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline | None
    ) -> None:
        self._rows = rows
        self._graph = graph
        self._cluster = cluster
        self._plan = plan
        self._task_id = {task.name: index for index, task in enumerate(graph.tasks)}
        self._run_step = {s.task: i for i, s in enumerate(plan.steps) if isinstance(s, Run)}
        self._span = dict.fromkeys(range(len(plan.steps)), (0, 0))
        if predicted is not None:
            self._span = {s.step: (s.start_ns, s.finish_ns) for s in predicted.spans}
        self._copy_step = {
            (step.tensor, step.dst): index
            for index, step in enumerate(plan.steps)
            if isinstance(step, Copy)
        }
        self._tensor = self._tensors_of_values()
        self._items: dict[Instance, Item] = {}
        self._calls: list[Item] = []

    def run(self) -> tuple[Item, ...]:
        home: dict[int, int] = {}
        task_of: dict[int, int] = {}
        devices = []
        for row in self._rows.rows:
            task = self._task_id.get(row.task)
            if task is None or task not in self._run_step:
                raise LoweringError(
                    f"kernel {row.kernel} belongs to task {row.task!r}, which the plan does not "
                    f"run; the module and its plan do not belong together"
                )
            step = self._plan.steps[self._run_step[task]]
            assert isinstance(step, Run)
            devices.append(step.device)
            for value in row.writes:
                home[value] = self._cluster.devices[step.device].memory
                task_of[value] = task
        for index, row in enumerate(self._rows.rows):
            memory = self._cluster.devices[devices[index]].memory
            reads = dict.fromkeys(
                (root(self._rows, value), memory)
                for value in row.reads
                if self._rows.values[root(self._rows, value)].constant is None
            )
            for value, _ in reads:
                self._bring(value, memory, home, task_of)
            self._calls.append(self._call(index, devices[index], memory, tuple(reads)))
        for output in self._rows.outputs:
            owner = root(self._rows, output)
            self._bring(owner, self._host, home, task_of)
        return self._sorted([*self._calls, *self._items.values()])

    def _tensors_of_values(self) -> dict[int, int]:
        """The tensor of the graph that each value is; values with another layout have none."""
        graph, rows = self._graph, self._rows
        inputs = {graph.tensors[tensor].name: tensor for tensor in graph.inputs}
        found = {}
        for value, description in enumerate(rows.values):
            if description.input_name is not None and description.input_name in inputs:
                found[value] = inputs[description.input_name]
        for row in rows.rows:
            outputs = (
                graph.task_outputs[self._task_id[row.task]] if row.task in self._task_id else ()
            )
            shapes = [graph.tensors[tensor].shape for tensor in outputs]
            if shapes == [rows.values[value].shape for value in row.writes]:
                found.update(zip(row.writes, outputs, strict=True))
        return found

    @property
    def _host(self) -> int:
        if self._cluster.host is None:
            raise LoweringError(
                f"cluster {self._cluster.name!r} names no host memory, so nothing can be run on "
                f'it; add "host" to the cluster file'
            )
        return self._cluster.host

    def _call(self, index: int, device: int, memory: int, reads: tuple[Instance, ...]) -> Item:
        row = self._rows.rows[index]
        step = self._run_step[self._task_id[row.task]]
        start, finish = self._span[step]
        writes = tuple((value, memory) for value in row.writes)
        return Item(index, device, (), step, start, finish, reads, writes)

    def _bring(
        self, value: int, memory: int, home: dict[int, int], task_of: dict[int, int]
    ) -> None:
        """Make sure that there is a copy of `value` into `memory`, if it is not made there."""
        source = home.get(value, self._host)
        if source == memory or (value, memory) in self._items:
            return
        route = self._cluster.route(source, memory)
        task = task_of.get(value)
        duration = self._cluster.transfer_ns(route, self._rows.values[value].bytes)
        step = self._copy_step.get((self._tensor.get(value, -1), memory))
        if step is not None:
            start, finish = self._span[step]
        else:
            # A value that the neutral graph does not have (a changed layout); it goes as soon as
            # its producer is done.
            step = 0 if task is None else self._run_step[task]
            start = 0 if task is None else self._span[step][1]
            finish = start + duration
        self._items[value, memory] = Item(
            None, None, route, step, start, finish, ((value, source),), ((value, memory),)
        )

    def _sorted(self, items: list[Item]) -> tuple[Item, ...]:
        """Topological order; among what is ready the earliest step of the plan comes first."""
        writer = {instance: index for index, item in enumerate(items) for instance in item.writes}
        waiting = [0] * len(items)
        followers: list[list[int]] = [[] for _ in items]
        for index, item in enumerate(items):
            before = {writer[instance] for instance in item.reads if instance in writer}
            waiting[index] = len(before)
            for other in before:
                followers[other].append(index)
        ready = [(item.step, index) for index, item in enumerate(items) if not waiting[index]]
        heapq.heapify(ready)
        order = []
        while ready:
            index = heapq.heappop(ready)[1]
            order.append(items[index])
            for follower in followers[index]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(ready, (items[follower].step, follower))
        if len(order) < len(items):
            raise LoweringError("the kernels depend on each other in a cycle; report this as a bug")
        return tuple(order)
