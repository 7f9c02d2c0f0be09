"""A plan and its timeline -> which steps hand data to which, and the chain that ends last.

The critical path is that of the timeline, not of the graph: from the last step back to whatever
finished last of what each step waited for, data or a resource that another step was using.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Load, Plan, Run, Step
from heteroplace.model.step_values import items_of, makes, occupied, reads
from heteroplace.model.timeline import Timeline

_Value = tuple[int, int, int]
"""(tensor, memory, item)"""


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """One step of a critical path."""

    step: int
    """Position in the plan."""
    waits_for: str
    """"data": its predecessor made what it reads. "resource": that was on its device or channel.
    "": it is the first."""
    pause_ns: int
    """From the finish of its predecessor, or from the start of the run, to its own start."""


def data_pairs(graph: TaskGraph, cluster: Cluster, plan: Plan) -> tuple[tuple[int, int], ...]:
    """Return (maker, copy or collective) and (copy or collective, reader of it), each once.

    Nothing is moved between devices of one memory, so there is no pair of two runs.
    """
    steps = plan.steps
    pairs: dict[tuple[int, int], None] = {}  # once, also where they have several items in common
    for index, makers in enumerate(_makers(graph, cluster, plan)):
        for maker in makers:
            if not (isinstance(steps[index], Run) and isinstance(steps[maker], Run)):
                pairs[maker, index] = None
    return tuple(pairs)


def _makers(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Iterator[list[int]]:
    """For each step the earlier ones that put what it reads where it reads it."""
    source: dict[_Value, int] = {}
    for index, step in enumerate(plan.steps):
        yield [source[value] for value in _values(graph, cluster, step) if value in source]
        for tensor, memory in makes(graph, cluster, step):
            for item in items_of(graph, tensor, step.items):
                source[tensor, memory, item] = index


def _values(graph: TaskGraph, cluster: Cluster, step: Step) -> Iterator[_Value]:
    for tensor, memory in reads(graph, cluster, step):
        for item in items_of(graph, tensor, step.items):
            yield tensor, memory, item


def critical_path(
    graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline
) -> tuple[CriticalStep, ...]:
    """Return the steps that the makespan of `timeline` is the sum of, with their pauses, in order.

    Steps that the timeline has not (they have no kernel of their own) are passed through.
    """
    times = timeline.step_times
    if not times:
        return ()
    binding = _bindings(graph, cluster, plan, timeline)
    found = []
    step: int | None = max(times, key=lambda index: (times[index][1], -index))
    while step is not None:
        before, why = binding[step]
        finish = 0 if before is None else times[before][1]
        found.append(CriticalStep(step, why, times[step][0] - finish))
        step = before
    return tuple(reversed(found))


def _bindings(
    graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline
) -> dict[int, tuple[int | None, str]]:
    """For each step in the timeline the one that it waited for longest, and what it gave: data
    before a resource where both come at once."""
    times = timeline.step_times
    last: dict[int, int] = {}
    loaded: dict[tuple[int, int], int] = {}
    # What a step without times of its own would have waited for.
    through: dict[int, list[int]] = {}
    found: dict[int, tuple[int | None, str]] = {}
    for index, makers in enumerate(_makers(graph, cluster, plan)):
        step = plan.steps[index]
        sources = list(makers)
        if isinstance(step, Run):
            place = step.task, cluster.devices[step.device].memory
            sources += [loaded[place]] if place in loaded else []
        known: list[int] = []
        for maker in sources:
            known += [maker] if maker in times else through.get(maker, [])
        if isinstance(step, Load):
            loaded.update({(task, step.dst): index for task in step.tasks})
        if index not in times:
            through[index] = known
            continue
        resources = occupied(graph, cluster, step)
        choices = [(times[maker][1], 1, maker) for maker in known]
        choices += [(times[last[r]][1], 0, last[r]) for r in resources if r in last]
        # Measured times may overlap: only what began before can have been waited for.
        choices = [one for one in choices if times[one[2]][0] <= times[index][0]]
        if choices:
            _, is_data, before = max(choices)
            found[index] = before, "data" if is_data else "resource"
        else:
            found[index] = None, ""
        last.update(dict.fromkeys(resources, index))
    return found


def critical_shares(
    path: tuple[CriticalStep, ...], timeline: Timeline
) -> tuple[tuple[str, int], ...]:
    """Return what the makespan is made of: (name of a device or channel, ns on the path), the
    largest first; "" for pauses."""
    times = timeline.step_times
    resource: dict[int, str] = {}
    for span in timeline.spans:
        resource.setdefault(span.step, span.resource)
    shares: dict[str, int] = {}
    for one in path:
        start, finish = times[one.step]
        shares[resource[one.step]] = shares.get(resource[one.step], 0) + finish - start
        if one.pause_ns > 0:
            shares[""] = shares.get("", 0) + one.pause_ns
    return tuple(sorted(shares.items(), key=lambda share: (-share[1], share[0])))
