"""A schedule that grows task by task, as plain loops: what all list schedulers stand on.

The model is that of `heteroplace.simulate`: a task takes the first gap of all units of its device,
a copy the first common gap of all that its route occupies, one copy for each (tensor, memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from heteroplace.model.plan import Copy, Run, Step
from heteroplace.solve import Problem
from tests.reference.live_memory import reference_peaks
from tests.reference.simulator import reference_times

Busy = dict[int, list[tuple[int, int]]]
UNREACHABLE = 2**50


@dataclass
class Trial:
    """What placing a task on a device would do."""

    device: int
    start: int
    finish: int
    violation: int
    copies: list[tuple[int, int, int, int]]
    """(tensor, src, start, finish)"""


def first_gap(busy: Busy, resources: Sequence[int], ready: int, duration: int) -> int:
    """Earliest start at which all resources are free for the duration, by trying every end."""
    spans = [span for resource in resources for span in merged(busy.get(resource, []))]
    for start in sorted({ready, *(end for _, end in spans if end > ready)}):
        # A slot of no length fits at the very start of a span, never inside it.
        if all(end <= start or start + duration <= begin for begin, end in spans):
            return start
    raise AssertionError("the end of the last span is always free")


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans in order; those that touch are one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin == found[-1][1]:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


@dataclass
class Scheduler:
    """A schedule that grows."""

    problem: Problem
    frees: bool = True
    """Tensors whose readers are all placed take no room, where the static rule may be short."""
    fills_gaps: bool = True
    """Tasks go into gaps; False: behind all that their units have."""
    busy: Busy = field(default_factory=dict)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    device: dict[int, int] = field(default_factory=dict)
    group: dict[str, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    workspace: dict[int, int] = field(default_factory=dict)
    finish_ns: dict[int, int] = field(default_factory=dict)
    copies: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    """(tensor, src, dst, start, finish)"""
    released: set[int] = field(default_factory=set)
    makespan: int = 0
    violation: int = 0
    now: int = 0
    went_back: bool = False
    """A task was placed before the start of the one placed last."""
    filled_gap: bool = False
    """A task was placed before something else of its device."""

    def __post_init__(self) -> None:
        graph, cluster = self.problem.graph, self.problem.cluster
        self.kept = {*graph.inputs, *graph.outputs} if cluster.host is not None else set()
        for memory in range(len(cluster.memories)):
            for tensor in graph.inputs:
                if cluster.host in (None, memory):
                    self.there[tensor, memory] = 0
                    self.home[tensor] = memory
            is_host = memory == cluster.host
            self.used[memory] = is_host * sum(graph.tensors[t].bytes for t in self.kept)

    def choices(self, task: int) -> list[int]:
        label = self.problem.graph.tasks[task].together
        if label is not None and label in self.group:
            return [self.group[label]]
        return [d for d, ns in enumerate(self.problem.native.run_ns[task].tolist()) if ns >= 0]

    def tensor_bytes(self, tensor: int, memory: int) -> int:
        is_kept = memory == self.problem.cluster.host and tensor in self.kept
        return 0 if is_kept else self.problem.graph.tensors[tensor].bytes

    def members(self, task: int) -> list[int]:
        """The tasks that are charged with this one."""
        tasks = self.problem.graph.tasks
        label = tasks[task].together
        if label is None:
            return [task]
        if label in self.group:
            return []
        return [other for other, value in enumerate(tasks) if value.together == label]

    def task_bytes(self, tasks: list[int], device: int) -> int:
        graph, memory = self.problem.graph, self.problem.cluster.devices[device].memory
        total = sum(graph.tasks[task].weight_bytes for task in tasks)
        total += sum(
            self.tensor_bytes(t, memory) for task in tasks for t in graph.task_outputs[task]
        )
        before = self.workspace.get(device, 0)
        return (
            total + max([before, *(graph.tasks[task].workspace_bytes for task in tasks)]) - before
        )

    def run_ns(self, task: int, device: int) -> int:
        return int(self.problem.native.run_ns[task, device])

    def resources(self, src: int, dst: int) -> list[int]:
        cluster = self.problem.cluster
        return [r for link in cluster.route(src, dst) for r in cluster.link_resources[link]]

    def attempt(self, task: int, device: int) -> Trial:
        graph, cluster = self.problem.graph, self.problem.cluster
        memory = cluster.devices[device].memory
        busy = {resource: list(spans) for resource, spans in self.busy.items()}
        extra, ready, violation = self.task_bytes(self.members(task), device), 0, 0
        copies = []
        for tensor in graph.task_inputs[task]:
            if (tensor, memory) in self.there:
                ready = max(ready, self.there[tensor, memory])
                continue
            src = self.home[tensor]
            if not cluster.is_reachable(src, memory):
                violation += UNREACHABLE
                continue
            duration = cluster.transfer_ns(cluster.route(src, memory), graph.tensors[tensor].bytes)
            resources = self.resources(src, memory)
            start = first_gap(busy, resources, self.there[tensor, src], duration)
            for resource in resources:
                busy.setdefault(resource, []).append((start, start + duration))
            copies.append((tensor, src, start, start + duration))
            ready = max(ready, start + duration)
            extra += self.tensor_bytes(tensor, memory)
        free = cluster.memories[memory].bytes - self.used[memory]
        free += sum(
            self.tensor_bytes(tensor, memory)
            for tensor in self.released
            if (tensor, memory) in self.there
        )
        run = self.run_ns(task, device)
        start = first_gap(self.busy, cluster.unit_ids[device], ready, run)
        if not self.fills_gaps:
            start = max(ready, self.available(device))
        return Trial(device, start, start + run, violation + max(0, extra - free), copies)

    def available(self, device: int) -> int:
        """When all that is on the device's units is done."""
        units = self.problem.cluster.unit_ids[device]
        return max((end for unit in units for _, end in self.busy.get(unit, [])), default=0)

    def commit(self, task: int, trial: Trial) -> None:
        graph, cluster = self.problem.graph, self.problem.cluster
        memory = cluster.devices[trial.device].memory
        members = self.members(task)
        self.used[memory] += self.task_bytes(members, trial.device)
        for member in members:
            need = graph.tasks[member].workspace_bytes
            self.workspace[trial.device] = max(need, self.workspace.get(trial.device, 0))
        label = graph.tasks[task].together
        if label is not None:
            self.group[label] = trial.device
        for tensor, src, start, finish in trial.copies:
            self.copy(tensor, src, memory, start, finish)
        for unit in cluster.unit_ids[trial.device]:
            self.busy.setdefault(unit, []).append((trial.start, trial.finish))
        for tensor in graph.task_outputs[task]:
            self.home[tensor] = memory
            self.there[tensor, memory] = trial.finish
        self.device[task] = trial.device
        self.finish_ns[task] = trial.finish
        self.makespan = max(self.makespan, trial.finish)
        self.violation += trial.violation // UNREACHABLE * UNREACHABLE
        if self.frees and self.problem.native.counts_lifetimes:
            is_free = cluster.host is None
            self.released = {
                tensor
                for tensor, value in enumerate(graph.tensors)
                if tensor in self.home and tensor not in graph.outputs
                if not (is_free and value.producer is None)
                if all(reader in self.device for reader in value.consumers)
            }

    def copy(self, tensor: int, src: int, dst: int, start: int, finish: int) -> None:
        for resource in self.resources(src, dst):
            self.busy.setdefault(resource, []).append((start, finish))
        self.copies.append((tensor, src, dst, start, finish))
        self.there[tensor, dst] = finish
        self.used[dst] += self.tensor_bytes(tensor, dst)
        self.makespan = max(self.makespan, finish)

    def finish(self) -> Scheduler:
        graph, cluster = self.problem.graph, self.problem.cluster
        host = cluster.host
        if host is not None:
            waiting = [t for t in sorted(set(graph.outputs)) if (t, host) not in self.there]
            for tensor in sorted(waiting, key=lambda t: self.there[t, self.home[t]]):
                src = self.home[tensor]
                duration = cluster.transfer_ns(
                    cluster.route(src, host), graph.tensors[tensor].bytes
                )
                made = self.there[tensor, src]
                start = first_gap(self.busy, self.resources(src, host), made, duration)
                self.copy(tensor, src, host, start, start + duration)
        lacks = [used - cluster.memories[memory].bytes for memory, used in self.used.items()]
        if max(lacks) > 0 and not self.violation and self.problem.native.counts_lifetimes:
            lacks = self.live_lacks()
        self.violation += sum(max(0, lack) for lack in lacks)
        return self

    def live_lacks(self) -> list[int]:
        """What each memory lacks at its peak."""
        graph, cluster = self.problem.graph, self.problem.cluster
        entries: list[tuple[int, int, int, int, int, Step]] = []
        for task, device in self.device.items():
            finish = self.finish_ns[task]
            start = finish - self.run_ns(task, device)
            entries.append((start, finish, 2 * task, task, device, Run(task, device)))
        for tensor, src, dst, start, finish in self.copies:
            producer = graph.tensors[tensor].producer
            rank = 2 * (-1 if producer is None else producer) + 1
            copy = Copy(tensor, src, dst, cluster.route(src, dst))
            entries.append((start, finish, rank, tensor, dst, copy))
        steps = [entry[-1] for entry in sorted(entries, key=lambda entry: entry[:-1])]
        plan = self.problem.native.plan(steps, "reference")
        times = reference_times(graph, cluster, self.problem.costs, plan)
        peaks = reference_peaks(graph, cluster, plan, times)
        return [
            peak - memory.bytes for (peak, *_), memory in zip(peaks, cluster.memories, strict=True)
        ]
