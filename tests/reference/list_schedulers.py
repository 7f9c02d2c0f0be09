"""The list schedulers as plain loops over all candidates: slow, and easy to check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import permutations
from math import inf
from operator import add

from heteroplace.solve import Problem
from tests.reference.list_engine import UNREACHABLE, Scheduler, Trial


def mean_run(problem: Problem, task: int) -> float:
    """Over the devices that the task may be on."""
    runs = [ns for ns in problem.native.run_ns[task].tolist() if ns >= 0]
    return sum(runs) / max(1, len(runs))


def mean_transfer(problem: Problem, tensor: int) -> float:
    """Over the ordered pairs of distinct devices with a route; those in one memory count as 0."""
    cluster, size = problem.cluster, problem.graph.tensors[tensor].bytes
    memories = [device.memory for device in cluster.devices]
    pairs = [pair for pair in permutations(memories, 2) if cluster.is_reachable(*pair)]
    times = [
        cluster.transfer_ns(cluster.route(*pair), size) for pair in pairs if len(set(pair)) > 1
    ]
    return sum(times) / max(1, len(pairs))


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


def within_memory(make_plan: Callable[[Problem, bool], Scheduler], problem: Problem) -> Scheduler:
    """What frees tensors; if that lacks memory, what frees none, where it lacks less."""
    found = make_plan(problem, True)
    if not found.violation:
        return found
    other = make_plan(problem, False)
    return other if other.violation < found.violation else found


def path_ranks(problem: Problem) -> list[float]:
    """Upward + downward ranks."""
    graph, up = problem.graph, upward_ranks(problem)
    down = [0.0] * len(up)
    for task in range(len(up)):
        for tensor in graph.task_inputs[task]:
            before = graph.tensors[tensor].producer
            if before is not None:
                way = down[before] + mean_run(problem, before) + mean_transfer(problem, tensor)
                down[task] = max(down[task], way)
    return [one + other for one, other in zip(up, down, strict=True)]


def critical_path(problem: Problem) -> tuple[list[int], int]:
    """Its tasks, and the device that runs most of them, then in least time."""
    graph, priority = problem.graph, path_ranks(problem)
    path: list[int] = []
    choices: Sequence[int] = [t for t, before in enumerate(graph.predecessors) if not before]
    while choices:
        path.append(max(choices, key=lambda task: (priority[task], -task)))
        choices = graph.successors[path[-1]]
    runs = problem.native.run_ns[path].T.tolist()
    loads = [(sum(ns < 0 for ns in row), sum(ns for ns in row if ns >= 0)) for row in runs]
    return path, loads.index(min(loads))


def optimistic_costs(problem: Problem) -> list[list[float]]:
    """[num_tasks, num_devices]: the longest way to the end at its shortest, without waits."""
    graph, native = problem.graph, problem.native
    memories = [device.memory for device in problem.cluster.devices]
    means = [mean_transfer(problem, tensor) for tensor in range(len(graph.tensors))]
    table = [[0.0] * len(memories) for _ in graph.tasks]
    for task in range(len(graph.tasks) - 1, -1, -1):
        for device, memory in enumerate(memories):
            for tensor in graph.task_outputs[task]:
                mean = means[tensor]
                for reader in graph.tensors[tensor].consumers:
                    way = min(
                        table[reader][other] + run + (0.0 if memories[other] == memory else mean)
                        for other, run in enumerate(native.run_ns[reader].tolist())
                        if run >= 0
                    )
                    table[task][device] = max(table[task][device], way)
    return table


def mean_costs(problem: Problem) -> list[float]:
    """Of the optimistic costs, over the devices that the task may be on."""
    priority = []
    for task, row in enumerate(optimistic_costs(problem)):
        allowed = [row[d] for d, ns in enumerate(problem.native.run_ns[task].tolist()) if ns >= 0]
        priority.append(reduce(add, allowed) / len(allowed))
    return priority


def judge_of(
    problem: Problem, scheduler: Scheduler, choice: str
) -> Callable[[int, Trial], tuple[float, ...]]:
    """What a task on a device is compared by, as (violation, is away, value, ties ...)."""
    path, path_device = critical_path(problem)
    costs, tasks = optimistic_costs(problem), problem.graph.tasks

    def run_of_group(task: int, device: int) -> int:
        label = tasks[task].together
        members = [t for t in range(len(tasks)) if label and tasks[t].together == label] or [task]
        return sum(scheduler.run_ns(member, device) for member in members)

    def judged(task: int, trial: Trial) -> tuple[float, ...]:
        finish = trial.finish + output_ns(problem, task, trial.device)
        value = {
            "finish": finish,
            "path": finish,
            "start": trial.start,
            "run": run_of_group(task, trial.device),
            "latency": max(scheduler.makespan, finish),
            "lookahead": finish + costs[task][trial.device],
            "available": scheduler.available(trial.device),
        }[choice]
        is_away = choice == "path" and task in path and trial.device != path_device
        num_units = len(problem.cluster.unit_ids[trial.device])
        tie = 0 if choice == "available" else finish
        return (trial.violation, is_away, value, tie, num_units, trial.device)

    return judged


def merit_of(priority: str, keys: list[tuple[float, ...]]) -> tuple[float, float]:
    """By the sorted keys of a ready task; the largest goes first."""
    best = keys[0]
    if priority == "sufferage":
        seconds = [key for key in keys[1:2] if key[0] <= best[0]]
        return -best[0], seconds[0][2] - best[2] if seconds else inf
    return -best[0], {"min-min": -best[2], "max-min": best[2]}[priority]


def by_parts(problem: Problem, parts: tuple[str, str, str], frees: bool = True) -> Scheduler:
    """The list scheduler of three parts."""
    priority, choice, insertion = parts
    scheduler = Scheduler(problem, frees, fills_gaps=insertion == "gaps")
    judged = judge_of(problem, scheduler, choice)

    def choices(task: int) -> list[tuple[tuple[float, ...], Trial]]:
        trials = [scheduler.attempt(task, device) for device in scheduler.choices(task)]
        return sorted(((judged(task, trial), trial) for trial in trials), key=lambda pair: pair[0])

    static = {
        "topological": lambda: [0.0] * len(problem.graph.tasks),
        "rank": lambda: upward_ranks(problem),
        "path": lambda: path_ranks(problem),
        "lookahead": lambda: mean_costs(problem),
    }
    if priority in static:
        for task in ready_first(problem, static[priority]()):
            scheduler.commit(task, choices(task)[0][1])
        return scheduler.finish()
    batch: list[int] = []
    while len(scheduler.device) < len(problem.graph.tasks):
        if not batch or priority == "sufferage":
            batch = [
                task
                for task, before in enumerate(problem.graph.predecessors)
                if task not in scheduler.device and all(b in scheduler.device for b in before)
            ]
        merits = {task: merit_of(priority, [key for key, _ in choices(task)]) for task in batch}
        chosen = max(batch, key=lambda task: (merits[task], -task))
        scheduler.commit(chosen, choices(chosen)[0][1])
        batch.remove(chosen)
    return scheduler.finish()


Key = tuple[int, int, float, int, int, int]


def earliest(
    problem: Problem, time: Callable[[Trial], int], favourite: Sequence[int] = ()
) -> Scheduler:
    """Of all ready pairs the earliest; with favourites as m-SCT."""
    scheduler, ranks = Scheduler(problem, frees=False), upward_ranks(problem)
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
