"""HEFT, CPoP, PEFT, ETF, m-ETF and m-SCT as plain loops over all candidates: slow, and easy to check.

The model is that of `heteroplace.simulate`: a task takes the first gap of all units of its device,
a copy the first common gap of all that its route occupies, one copy for each (tensor, memory).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import permutations
from operator import add

from heteroplace.solve import Problem

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
    busy: Busy = field(default_factory=dict)
    there: dict[tuple[int, int], int] = field(default_factory=dict)
    home: dict[int, int] = field(default_factory=dict)
    device: dict[int, int] = field(default_factory=dict)
    group: dict[str, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    workspace: dict[int, int] = field(default_factory=dict)
    finish_ns: dict[int, int] = field(default_factory=dict)
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
        run = self.run_ns(task, device)
        start = first_gap(self.busy, cluster.unit_ids[device], ready, run)
        return Trial(device, start, start + run, violation + max(0, extra - free), copies)

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

    def copy(self, tensor: int, src: int, dst: int, start: int, finish: int) -> None:
        for resource in self.resources(src, dst):
            self.busy.setdefault(resource, []).append((start, finish))
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
        for memory, used in self.used.items():
            self.violation += max(0, used - cluster.memories[memory].bytes)
        return self


def mean_run(problem: Problem, task: int) -> float:
    """Over the devices that the task may be on."""
    runs = [ns for ns in problem.native.run_ns[task].tolist() if ns >= 0]
    return sum(runs) / max(1, len(runs))


def mean_transfer(problem: Problem, tensor: int) -> float:
    """Over the ordered pairs of distinct devices; pairs in one memory count as 0."""
    cluster, size = problem.cluster, problem.graph.tensors[tensor].bytes
    memories = [device.memory for device in cluster.devices]
    total = sum(
        cluster.transfer_ns(cluster.route(src, dst), size)
        for src, dst in permutations(memories, 2)
        if src != dst and cluster.is_reachable(src, dst)
    )
    return total / max(1, len(memories) * (len(memories) - 1))


def upward_ranks(problem: Problem) -> list[float]:
    """Mean run plus the largest mean transfer and rank of a reader."""
    graph = problem.graph
    ranks = [0.0] * len(graph.tasks)
    for task in range(len(graph.tasks) - 1, -1, -1):
        below = 0.0
        for tensor in graph.task_outputs[task]:
            for reader in graph.tensors[tensor].consumers:
                below = max(below, mean_transfer(problem, tensor) + ranks[reader])
        ranks[task] = mean_run(problem, task) + below
    return ranks


def output_ns(problem: Problem, task: int, device: int) -> int:
    """Longest way to the host of the model outputs that the task makes."""
    graph, cluster = problem.graph, problem.cluster
    outputs = set(graph.task_outputs[task]) & set(graph.outputs)
    if cluster.host is None or not outputs:
        return 0
    route = cluster.route(cluster.devices[device].memory, cluster.host)
    return max(cluster.transfer_ns(route, graph.tensors[tensor].bytes) for tensor in outputs)


def place_best(
    scheduler: Scheduler, task: int, key: Callable[[int, Trial, int], tuple[float, ...]]
) -> None:
    """Put a task where `key` of it, the trial and its finish at the host is least, if it fits."""
    problem = scheduler.problem

    def judged(trial: Trial) -> tuple[float, ...]:
        finish = trial.finish + output_ns(problem, task, trial.device)
        num_units = len(problem.cluster.unit_ids[trial.device])
        return (trial.violation, *key(task, trial, finish), num_units, trial.device)

    trials = [scheduler.attempt(task, device) for device in scheduler.choices(task)]
    scheduler.commit(task, min(trials, key=judged))


def ready_first(problem: Problem, priority: Sequence[float]) -> Iterator[int]:
    """All tasks: of those whose producers are done, the one of highest priority; ties by id."""
    done: set[int] = set()
    while len(done) < len(priority):
        ready = [
            task
            for task, before in enumerate(problem.graph.predecessors)
            if task not in done and done.issuperset(before)
        ]
        chosen = max(ready, key=lambda task: (priority[task], -task))
        yield chosen
        done.add(chosen)


def heft(problem: Problem) -> Scheduler:
    """Tasks by falling rank, each where it finishes first."""
    scheduler, ranks = Scheduler(problem), upward_ranks(problem)
    for task in sorted(range(len(ranks)), key=lambda task: (-ranks[task], task)):
        place_best(scheduler, task, lambda _, __, finish: (finish,))
    return scheduler.finish()


def cpop(problem: Problem) -> Scheduler:
    """By upward + downward rank; the critical path where it runs fastest."""
    graph, up = problem.graph, upward_ranks(problem)
    down = [0.0] * len(up)
    for task in range(len(up)):
        for tensor in graph.task_inputs[task]:
            before = graph.tensors[tensor].producer
            if before is not None:
                way = down[before] + mean_run(problem, before) + mean_transfer(problem, tensor)
                down[task] = max(down[task], way)
    priority = [one + other for one, other in zip(up, down, strict=True)]
    path: list[int] = []
    choices: Sequence[int] = [t for t, before in enumerate(graph.predecessors) if not before]
    while choices:
        path.append(max(choices, key=lambda task: (priority[task], -task)))
        choices = graph.successors[path[-1]]
    runs = problem.native.run_ns[path].T.tolist()
    loads = [(sum(ns < 0 for ns in row), sum(ns for ns in row if ns >= 0)) for row in runs]
    best = loads.index(min(loads))

    def key(task: int, trial: Trial, finish: int) -> tuple[float, ...]:
        return (task in path and trial.device != best, finish)

    scheduler = Scheduler(problem)
    for task in ready_first(problem, priority):
        place_best(scheduler, task, key)
    return scheduler.finish()


def optimistic_costs(problem: Problem) -> list[list[float]]:
    """[num_tasks, num_devices]: the longest way to the end at its shortest, without waits."""
    graph, native = problem.graph, problem.native
    memories = [device.memory for device in problem.cluster.devices]
    table = [[0.0] * len(memories) for _ in graph.tasks]
    for task in range(len(graph.tasks) - 1, -1, -1):
        for device, memory in enumerate(memories):
            for tensor in graph.task_outputs[task]:
                for reader in graph.tensors[tensor].consumers:
                    way = min(
                        table[reader][other]
                        + run
                        + (0.0 if memories[other] == memory else mean_transfer(problem, tensor))
                        for other, run in enumerate(native.run_ns[reader].tolist())
                        if run >= 0
                    )
                    table[task][device] = max(table[task][device], way)
    return table


def peft(problem: Problem) -> Scheduler:
    """By mean optimistic cost, each where finish + optimistic cost is least."""
    costs, priority = optimistic_costs(problem), []
    for task, row in enumerate(costs):
        allowed = [row[d] for d, ns in enumerate(problem.native.run_ns[task].tolist()) if ns >= 0]
        priority.append(reduce(add, allowed) / len(allowed))
    scheduler = Scheduler(problem)
    for task in ready_first(problem, priority):
        place_best(scheduler, task, lambda t, trial, finish: (finish + costs[t][trial.device],))
    return scheduler.finish()


Key = tuple[int, int, float, int, int, int]


def earliest(
    problem: Problem, time: Callable[[Trial], int], favourite: Sequence[int] = ()
) -> Scheduler:
    """Of all ready pairs the earliest; with favourites as m-SCT."""
    scheduler, ranks = Scheduler(problem), upward_ranks(problem)
    graph = problem.graph
    latest: dict[int, int] = {}
    while len(scheduler.device) < len(graph.tasks):
        ready = [
            task
            for task, before in enumerate(graph.predecessors)
            if task not in scheduler.device and all(b in scheduler.device for b in before)
        ]
        pairs: dict[tuple[int, int], tuple[Key, Trial]] = {}
        for task in ready:
            for device in scheduler.choices(task):
                trial = scheduler.attempt(task, device)
                run = trial.finish - trial.start
                fault = 2 if trial.violation >= UNREACHABLE else int(trial.violation > 0)
                key = (fault, time(trial), -ranks[task], run, task, device)
                pairs[task, device] = (key, trial)
        awake = {
            device: favourite[task]
            for device, task in latest.items()
            if favourite and is_awaited(pairs, favourite[task], device)
        }
        made = {
            device: max(scheduler.finish_ns[before] for before in graph.predecessors[child])
            for device, child in awake.items()
        }
        free = [
            pair
            for (_, device), pair in pairs.items()
            if device not in awake or pair[1].start < made[device]
        ]
        awaited = [pairs[task, device] for device, task in awake.items()]
        best = min(free, default=None, key=lambda pair: pair[0])
        if awaited:
            child = min(awaited, key=lambda pair: pair[0])
            is_same = best is not None and (
                best[0][4] == child[0][4] and best[0][0] == 0 and child[0][1] <= best[0][1]
            )
            if best is None or is_same or child[0] < best[0]:
                best = child
            urgent = [pair for task in ready if (pair := latest_start(pairs, task)) is not None]
            first = min(urgent, key=lambda pair: pair[0])
            if first[0] < best[0] and first[0][4] != best[0][4]:
                best = first
        assert best is not None
        scheduler.went_back |= best[1].start < scheduler.now
        units = problem.cluster.unit_ids[best[1].device]
        ends = [end for unit in units for _, end in scheduler.busy.get(unit, [])]
        scheduler.filled_gap |= best[1].start < max(ends, default=0)
        scheduler.now = best[1].start
        scheduler.commit(best[0][4], best[1])
        latest[best[1].device] = best[0][4]
    return scheduler.finish()


def is_awaited(pairs: dict[tuple[int, int], tuple[Key, Trial]], child: int, device: int) -> bool:
    """Whether the child is ready and can start nowhere earlier than on the device."""
    starts = {
        d: t.start for (task, d), (_, t) in pairs.items() if task == child and not t.violation
    }
    return device in starts and starts[device] == min(starts.values())


def latest_start(
    pairs: dict[tuple[int, int], tuple[Key, Trial]], task: int
) -> tuple[Key, Trial] | None:
    """The first of the pairs with room that starts last, without its run time; None: no room."""
    roomy = [pair for (other, _), pair in pairs.items() if other == task and not pair[1].violation]
    if not roomy:
        return None
    key, trial = max(roomy, key=lambda pair: (pair[1].start, -pair[1].device))
    return (*key[:3], 0, *key[4:]), trial
