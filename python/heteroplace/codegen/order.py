"""KernelCalls + plan -> instructions: every kernel call and every copy, in one global order.

The plan says where each task runs and in which order; the calls say what really depends on what
once layouts are chosen. The order is topological for the calls and otherwise follows the plan, so
each queue of the program, which is a part of it, can never wait for itself.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from heteroplace.codegen.kernels import KernelCalls
from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Plan, Run
from heteroplace.model.timeline import Timeline

Instance = tuple[int, int]
"""A value in a memory: (value, memory). Aliases count as the value whose bytes they share."""


@dataclass(frozen=True)
class Instruction:
    """One kernel call or one copy."""

    call: int | None
    """Position of the kernel call in the calls; None: a copy."""
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


def root(calls: KernelCalls, value: int) -> int:
    """Return the value that owns the bytes of `value`."""
    while (alias_of := calls.values[value].alias_of) is not None:
        value = alias_of
    return value


def order_instructions(
    calls: KernelCalls, graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline | None
) -> tuple[Instruction, ...]:
    """List kernel calls and copies in an order that respects dependencies and follows the plan.

    Raises
    ------
    LoweringError
        A call belongs to a task that the plan does not know.
    """
    return _Orderer(calls, graph, cluster, plan, predicted).run()


class _Orderer:
    def __init__(
        self,
        calls: KernelCalls,
        graph: TaskGraph,
        cluster: Cluster,
        plan: Plan,
        predicted: Timeline | None,
    ) -> None:
        self._kernel_calls = calls
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
        self._instructions: dict[Instance, Instruction] = {}
        self._calls: list[Instruction] = []

    def run(self) -> tuple[Instruction, ...]:
        home: dict[int, int] = {}
        task_of: dict[int, int] = {}
        devices = []
        for call in self._kernel_calls.calls:
            task = self._task_id.get(call.task)
            if task is None or task not in self._run_step:
                raise LoweringError(
                    f"kernel {call.kernel} belongs to task {call.task!r}, which the plan does not "
                    f"run; the module and its plan do not belong together"
                )
            step = self._plan.steps[self._run_step[task]]
            assert isinstance(step, Run)
            devices.append(step.device)
            for value in call.writes:
                home[value] = self._cluster.devices[step.device].memory
                task_of[value] = task
        for index, call in enumerate(self._kernel_calls.calls):
            memory = self._cluster.devices[devices[index]].memory
            reads = dict.fromkeys(
                (root(self._kernel_calls, value), memory)
                for value in call.reads
                if self._kernel_calls.values[root(self._kernel_calls, value)].constant is None
            )
            for value, _ in reads:
                self._bring(value, memory, home, task_of)
            self._calls.append(self._call(index, devices[index], memory, tuple(reads)))
        for output in self._kernel_calls.outputs:
            owner = root(self._kernel_calls, output)
            self._bring(owner, self._host, home, task_of)
        return self._sorted([*self._calls, *self._instructions.values()])

    def _tensors_of_values(self) -> dict[int, int]:
        """The tensor of the graph that each value is; values with another layout have none."""
        graph, calls = self._graph, self._kernel_calls
        inputs = {graph.tensors[tensor].name: tensor for tensor in graph.inputs}
        found = {}
        for value, description in enumerate(calls.values):
            if description.input_name is not None and description.input_name in inputs:
                found[value] = inputs[description.input_name]
        for call in calls.calls:
            outputs = (
                graph.task_outputs[self._task_id[call.task]] if call.task in self._task_id else ()
            )
            shapes = [graph.tensors[tensor].shape for tensor in outputs]
            if shapes == [calls.values[value].shape for value in call.writes]:
                found.update(zip(call.writes, outputs, strict=True))
        return found

    @property
    def _host(self) -> int:
        if self._cluster.host is None:
            raise LoweringError(
                f"cluster {self._cluster.name!r} names no host memory, so nothing can be run on "
                f'it; add "host" to the cluster file'
            )
        return self._cluster.host

    def _call(
        self, index: int, device: int, memory: int, reads: tuple[Instance, ...]
    ) -> Instruction:
        call = self._kernel_calls.calls[index]
        step = self._run_step[self._task_id[call.task]]
        start, finish = self._span[step]
        writes = tuple((value, memory) for value in call.writes)
        return Instruction(index, device, (), step, start, finish, reads, writes)

    def _bring(
        self, value: int, memory: int, home: dict[int, int], task_of: dict[int, int]
    ) -> None:
        """Make sure that there is a copy of `value` into `memory`, if it is not made there."""
        source = home.get(value, self._host)
        if source == memory or (value, memory) in self._instructions:
            return
        route = self._cluster.route(source, memory)
        task = task_of.get(value)
        duration = self._cluster.transfer_ns(route, self._kernel_calls.values[value].bytes)
        step = self._copy_step.get((self._tensor.get(value, -1), memory))
        if step is not None:
            start, finish = self._span[step]
        else:
            # A value that the neutral graph does not have (a changed layout); it goes as soon as
            # its producer is done.
            step = 0 if task is None else self._run_step[task]
            start = 0 if task is None else self._span[step][1]
            finish = start + duration
        self._instructions[value, memory] = Instruction(
            None, None, route, step, start, finish, ((value, source),), ((value, memory),)
        )

    def _sorted(self, instructions: list[Instruction]) -> tuple[Instruction, ...]:
        """Topological order; among what is ready the earliest step of the plan comes first."""
        writer = {
            instance: index
            for index, instruction in enumerate(instructions)
            for instance in instruction.writes
        }
        waiting = [0] * len(instructions)
        followers: list[list[int]] = [[] for _ in instructions]
        for index, instruction in enumerate(instructions):
            before = {writer[instance] for instance in instruction.reads if instance in writer}
            waiting[index] = len(before)
            for other in before:
                followers[other].append(index)
        ready = [
            (instruction.step, index)
            for index, instruction in enumerate(instructions)
            if not waiting[index]
        ]
        heapq.heapify(ready)
        order = []
        while ready:
            index = heapq.heappop(ready)[1]
            order.append(instructions[index])
            for follower in followers[index]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    heapq.heappush(ready, (instructions[follower].step, follower))
        if len(order) < len(instructions):
            raise LoweringError("the kernels depend on each other in a cycle; report this as a bug")
        return tuple(order)
