"""A plan and its timeline -> which steps hand data to which, and the chain that ends last.

The critical path is that of the timeline, not of the graph: from the last step back to whatever
finished last of what each step waited for, data or a resource that another step was using.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.weight_room import room_parts
from heteroplace.model.plan import Plan, Run, guard_of
from heteroplace.model.step_values import makers, occupied
from heteroplace.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class CriticalStep:
    """One step of a critical path."""

    step: int
    """Position in the plan."""
    waits_for: str
    """"data": its predecessor made what it reads. "resource": that was on its device or channel,
    or read weights whose place it takes. "": it is the first."""
    pause_ns: int
    """From the finish of its predecessor, or from the start of the run, to its own start."""


def data_pairs(graph: TaskGraph, cluster: Cluster, plan: Plan) -> tuple[tuple[int, int], ...]:
    """Return (maker, copy or collective) and (copy or collective, reader of it), each once.

    Nothing is moved between devices of one memory, so there is no pair of two runs.
    """
    steps = plan.steps
    return tuple(
        (maker, index)
        for index, maker_steps in enumerate(makers(graph, cluster, steps))
        for maker in maker_steps
        if not (isinstance(steps[index], Run) and isinstance(steps[maker], Run))
    )


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
    critical = []
    step: int | None = max(times, key=lambda index: (times[index][1], -index))
    while step is not None:
        before, why = binding[step]
        finish = 0 if before is None else times[before][1]
        critical.append(CriticalStep(step, why, times[step][0] - finish))
        step = before
    return tuple(reversed(critical))


def _bindings(
    graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline
) -> dict[int, tuple[int | None, str]]:
    """For each step in the timeline the one that it waited for longest, and what it gave: data
    before a resource where both come at once."""
    times = timeline.step_times
    last: dict[int, int] = {}
    through: dict[int, list[int]] = {}
    """What a step without times of its own waited for, or would have."""
    bindings: dict[int, tuple[int | None, str]] = {}

    def timed(steps: Iterable[int]) -> list[int]:
        step_ids = (([step] if step in times else through.get(step, [])) for step in steps)
        return list(dict.fromkeys(chain.from_iterable(step_ids)))

    rooms = room_parts(plan.steps, cluster, len(cluster.resources))
    for index, sources in enumerate(makers(graph, cluster, plan.steps)):
        resources = (*occupied(graph, cluster, plan.steps[index]), *rooms[index])
        data, holders = timed(sources), timed(last[r] for r in resources if r in last)
        if index in times:
            choices = [(times[one][1], 1, one) for one in data]
            choices += [(times[one][1], 0, one) for one in holders]
            # Measured times may overlap: only what began before can have been waited for.
            choices = [one for one in choices if times[one[2]][0] <= times[index][0]]
            _, is_data, before = max(choices, default=(0, 0, None))
            why = "data" if is_data else "resource"
            bindings[index] = before, "" if before is None else why
        elif guard_of(plan.steps[index]) is not None:
            # Skipped, which its queue did not know before the router had decided.
            through[index] = list(dict.fromkeys([*data, *holders]))
        else:
            through[index] = data
            continue
        last.update(dict.fromkeys(resources, index))
    return bindings


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
