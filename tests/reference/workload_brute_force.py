"""The optimum of a workload by trying every placement of every entry and every order of its steps.

The steps of each plan are simulated in each order that is possible, so that memory counts by
lifetime for each of them. Memory is added up here anew, in the most obvious form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from heteroplace.model.plan import Step
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.workload.workload import Entry, Workload
from tests.reference.brute_force import Job, jobs_of, needed_copies


@dataclass(frozen=True)
class Way:
    """A plan of one entry."""

    placement: tuple[int, ...]
    makespan_ns: int
    held_bytes: tuple[int, ...]
    """For each memory the most bytes at once, without weights."""

    def beats(self, other: Way) -> bool:
        """Whether it is no worse in anything."""
        pairs = zip(self.held_bytes, other.held_bytes, strict=True)
        return self.makespan_ns <= other.makespan_ns and all(one <= two for one, two in pairs)


def optimal_workload(workload: Workload) -> int | None:
    """Least sum of calls times makespan over all plans of all entries whose copies leave the
    tensor's home; None if none fits. For a handful of tasks only."""
    ways = [sorted(ways_of(entry), key=lambda way: way.makespan_ns) for entry in workload.entries]
    calls = [entry.calls for entry in workload.entries]
    if not all(ways):
        return None
    least = [count * own[0].makespan_ns for count, own in zip(calls, ways, strict=True)]
    best: int | None = None

    def extend(chosen: list[Way], total_ns: int) -> None:
        nonlocal best
        index = len(chosen)
        if index == len(ways):
            if _fits(workload, chosen):
                best = total_ns
            return
        for way in ways[index]:
            now = total_ns + calls[index] * way.makespan_ns
            if best is not None and now + sum(least[index + 1 :]) >= best:
                return
            extend([*chosen, way], now)

    extend([], 0)
    return best


def ways_of(entry: Entry) -> list[Way]:
    """All plans of an entry that fit alone, without those that another one of the same placement
    beats."""
    problem, num_devices = entry.problem, len(entry.problem.cluster.devices)
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    ways: list[Way] = []
    for placement in product(range(num_devices), repeat=len(graph.tasks)):
        copies = needed_copies(graph, cluster, costs, placement)
        if copies is None:
            continue
        weights = [0] * len(cluster.memories)
        for task, device in zip(graph.tasks, placement, strict=True):
            weights[cluster.devices[device].memory] += task.weight_bytes
        best: list[Way] = []
        for steps in _orders(jobs_of(graph, cluster, costs, placement, copies), ()):
            times = simulate_steps(entry.roomy, steps)
            peaks = times.peak_bytes
            if any(peak > m.bytes for peak, m in zip(peaks, cluster.memories, strict=True)):
                continue
            held = tuple(peak - own for peak, own in zip(peaks, weights, strict=True))
            way = Way(placement, times.makespan_ns, held)
            if not any(each.beats(way) for each in best):
                best = [each for each in best if not way.beats(each)] + [way]
        ways += best
    return ways


def _orders(jobs: list[Job], done: tuple[int, ...]) -> Iterator[tuple[Step, ...]]:
    """All orders of steps in which nothing comes before what it needs."""
    if len(done) == len(jobs):
        yield tuple(jobs[index].step for index in done)
        return
    for index, job in enumerate(jobs):
        if index not in done and all(need in done for need in job.needs):
            yield from _orders(jobs, (*done, index))


def _fits(workload: Workload, chosen: list[Way]) -> bool:
    """Whether the memories hold the plans of all entries, and state is in one of them."""
    memories = workload.cluster.memories
    there: list[dict[object, int]] = [{} for _ in memories]
    for number, (entry, way) in enumerate(zip(workload.entries, chosen, strict=True)):
        for task, device in enumerate(way.placement):
            own = there[entry.problem.cluster.devices[device].memory]
            own[number, task] = int(entry.own_bytes[task])
            own.update(entry.weights[task])
    for index, memory in enumerate(memories):
        held = sum(way.held_bytes[index] for way in chosen)
        if sum(there[index].values()) + held > memory.bytes:
            return False
    # State of no bytes may be anywhere.
    return all(sum(bool(own.get(name)) for own in there) <= 1 for name in workload.states)
