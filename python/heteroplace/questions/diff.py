"""Two solutions -> in what they differ: objective, places, order, copies, memory."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import fields

from heteroplace.errors import PlanError
from heteroplace.model.answers import Moved, PlanDiff, Totals
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Run, devices_of
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import moved_bytes
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_ns


def diff(was: Solution, now: Solution) -> PlanDiff:
    """Compare a solution with one before it; tasks are told apart by their names.

    Raises
    ------
    PlanError
        The two have no task in common.
    """
    names = [task.name for task in now.graph.tasks]
    before = {task.name for task in was.graph.tasks}
    if names and before and before.isdisjoint(names):
        raise PlanError(
            f"the plans are of graphs {was.graph.name!r} and {now.graph.name!r}, which have no "
            f"task in common; give two plans of one model"
        )
    old, new = _Looked(was), _Looked(now)
    common = [name for name in names if name in before]
    moved = tuple(
        Moved(name, old.devices[name], new.devices[name], old.run_ns[name], new.run_ns[name])
        for name in common
        if old.devices[name] != new.devices[name]
    )
    in_place = set(common) - {entry.task for entry in moved}
    return PlanDiff(
        old.totals(),
        new.totals(),
        moved,
        tuple(name for name in names if name not in before),
        tuple(task.name for task in was.graph.tasks if task.name not in set(names)),
        _num_reordered(old.order, new.order, in_place),
        tuple(_notes(was, now)),
    )


class _Looked:
    """A solution by the names of its tasks."""

    def __init__(self, solution: Solution) -> None:
        graph, cluster, plan = solution.graph, solution.cluster, solution.plan
        self.solution = solution
        self.timeline: Timeline = solution.timeline
        devices = plan.devices_of_tasks(len(graph.tasks))
        self.devices = {
            task.name: tuple(cluster.devices[device].name for device in devices[index])
            for index, task in enumerate(graph.tasks)
        }
        self.run_ns = dict.fromkeys(self.devices, 0)
        self.order: dict[str, list[str]] = {device.name: [] for device in cluster.devices}
        """For each device its tasks in the order in which they run."""
        for index, step in enumerate(plan.steps):
            if not isinstance(step, (Run, Collective)):
                continue
            name = graph.tasks[step.task].name
            start, finish = self.timeline.step_times.get(index, (0, 0))
            self.run_ns[name] += finish - start
            for device in devices_of(step):
                self.order[cluster.devices[device].name].append(name)

    def totals(self) -> Totals:
        """Return what the plan is as a whole."""
        solution, cluster = self.solution, self.solution.cluster
        copies = solution.plan.copies
        peaks = zip(cluster.memories, self.timeline.peak_bytes, strict=False)
        return Totals(
            solution.objective_ns,
            self.timeline.makespan_ns,
            solution.bound_ns,
            len(copies),
            sum(moved_bytes(solution.graph, step) for step in copies),
            tuple((device, len(dict.fromkeys(tasks))) for device, tasks in self.order.items()),
            tuple((memory.name, peak) for memory, peak in peaks),
        )


def _num_reordered(was: dict[str, list[str]], now: dict[str, list[str]], in_place: set[str]) -> int:
    """Count the tasks that stayed on their device but left their place in its order: the fewest
    without which the order of the others is as before."""
    count = 0
    for device, tasks in now.items():
        before = {name: place for place, name in enumerate(dict.fromkeys(was.get(device, ())))}
        places = [before[name] for name in dict.fromkeys(tasks) if name in in_place]
        count += len(places) - _longest_rise(places)
    return count


def _longest_rise(numbers: list[int]) -> int:
    """The length of the longest ascending part of different numbers, not only of neighbours."""
    ends: list[int] = []  # at n - 1 the least number that a rise of length n ends with
    for number in numbers:
        place = bisect_left(ends, number)
        ends[place : place + 1] = [number]
    return len(ends)


def _notes(was: Solution, now: Solution) -> list[str]:
    notes = []
    if (was.item_ns is None) != (now.item_ns is None):
        notes.append("one plan is for latency and the other for throughput: times are not alike")
    if was.plan.items != now.plan.items:
        notes.append(f"the plans are for {was.plan.items} and {now.plan.items} items")
    if was.graph.digest() != now.graph.digest():
        notes.append(f"the graphs differ{_of_structure(was.graph, now.graph)}")
    if was.cluster.digest() != now.cluster.digest():
        notes.append(f"the clusters differ: {_cluster_difference(was, now)}")
    notes += _cost_note(was, now)
    return notes


def _of_structure(was: TaskGraph, now: TaskGraph) -> str:
    return (
        " in what tasks may do, not in what they compute"
        if (was.structure_digest == now.structure_digest)
        else ": what they compute is not the same"
    )


def _cluster_difference(was: Solution, now: Solution) -> str:
    texts = []
    kinds = {"devices": "device", "memories": "memory", "links": "link"}
    for kind, one in kinds.items():
        old = {entry.name: entry for entry in getattr(was.cluster, kind)}
        new = {entry.name: entry for entry in getattr(now.cluster, kind)}
        texts += [f"{one} {name} is new" for name in new if name not in old]
        texts += [f"{one} {name} is gone" for name in old if name not in new]
        for name in (name for name in new if name in old):
            texts += [
                f"{one} {name} has another {field.name}"
                for field in fields(new[name])
                if field.name not in ("memory", "src", "dst")  # ids shift with what is new or gone
                and getattr(old[name], field.name) != getattr(new[name], field.name)
            ]
    return ", ".join(texts[:8]) or "in their name, host or congestion"


def _cost_note(was: Solution, now: Solution) -> list[str]:
    """Say by how much the same work has other times in the two."""
    old_names = {task.name: index for index, task in enumerate(was.graph.tasks)}
    old_devices = {device.name: index for index, device in enumerate(was.cluster.devices)}
    pairs = [
        (was.costs.cost(old_names[task.name], old_devices[device.name]).ns,
         now.costs.cost(task_id, device_id).ns)
        for task_id, task in enumerate(now.graph.tasks)
        for device_id, device in enumerate(now.cluster.devices)
        if task.name in old_names and device.name in old_devices
    ]  # fmt: skip
    others = [(a, b) for a, b in pairs if a is not None and b is not None and a != b]
    if not others:
        return []
    old_ns, new_ns = sum(a for a, _ in others), sum(b for _, b in others)
    return [
        f"the costs differ in {len(others)} of {len(pairs)} times ({format_ns(old_ns)} before, "
        f"{format_ns(new_ns)} now, in sum), so times differ for that too"
    ]
