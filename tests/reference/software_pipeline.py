"""Plan -> plan of many repetitions as a software pipeline: that the steady state can be reached.

Repetitions in plan order keep the order of service of each resource: a device that is first and
last in the plan waits in each repetition for everything between. A pipeline gives each step a fixed
slot in a period and the repetitions follow at that distance, so a device serves the last steps of
one item between the first steps of later ones (modulo scheduling: Rau and Glaeser, "Some scheduling
techniques and an easily schedulable horizontal architecture", 1981; here with the slots in plan
order and no limit on the items in flight).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run, Step
from heteroplace.model.step_values import occupied
from heteroplace.model.timeline import Timeline
from heteroplace.simulate.throughput import shifted

Presence = tuple[int, int, int]
"""(tensor, memory, item)"""


@dataclass(frozen=True)
class Pipeline:
    """Repetitions of a plan that overlap."""

    plan: Plan
    """For `count` times the items of the plan that is repeated."""
    period_ns: int
    """A repetition follows the one before at this distance. It is the busy time of the busiest
    resource if each step occupies at most one, and may be longer otherwise."""
    latency_ns: int
    """Of one repetition in the pipeline; n of them take at most (n - 1) periods more."""


def pipeline_plan(
    graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline, count: int
) -> Pipeline:
    """Return `count` repetitions of `plan` as a software pipeline.

    Parameters
    ----------
    timeline
        The simulated timeline of `plan`: how long each step takes.
    count
        Number of repetitions, at least 1.
    """
    duration_ns = [0] * len(plan.steps)
    for span in timeline.spans:
        duration_ns[span.step] = span.finish_ns - span.start_ns
    slots_ns, period_ns = _slots(graph, cluster, plan, duration_ns)
    start_ns: list[int] = []
    written_ns: dict[Presence, int] = {}
    for index, step in enumerate(plan.steps):
        reads, writes = _reads_and_writes(graph, cluster, step)
        start = max((written_ns.get(presence, 0) for presence in reads), default=0)
        slot = slots_ns[index]
        if slot is not None:
            # The first time at or after `start` that is in the slot of some period.
            start = slot + max(0, -(-(start - slot) // period_ns)) * period_ns
        start_ns.append(start)
        written_ns.update(dict.fromkeys(writes, start + duration_ns[index]))
    # Of two steps that start at once, one that takes no time comes first: it delays nobody.
    order = sorted(
        (start_ns[index] + number * period_ns, duration_ns[index], index, number)
        for index in range(len(plan.steps))
        for number in range(count)
    )
    steps = tuple(shifted(plan, plan.steps[index], number) for _, _, index, number in order)
    latency_ns = max(map(sum, zip(start_ns, duration_ns, strict=True)), default=0)
    repeated = replace(plan, steps=steps, items=plan.items * count)
    return Pipeline(repeated, period_ns, latency_ns)


def _slots(
    graph: TaskGraph, cluster: Cluster, plan: Plan, duration_ns: list[int]
) -> tuple[list[int | None], int]:
    """Start of each step in a period in which no resource is used twice at once, and its length.

    None: the step occupies nothing and may start at any time.
    """
    free_ns = [0] * len(cluster.resources)
    slots: list[int | None] = []
    for index, step in enumerate(plan.steps):
        resources = occupied(graph, cluster, step)
        if not resources:
            slots.append(None)
            continue
        slot = max(free_ns[resource] for resource in resources)
        slots.append(slot)
        for resource in resources:
            free_ns[resource] = slot + duration_ns[index]
    return slots, max(1, *free_ns)


def _reads_and_writes(
    graph: TaskGraph, cluster: Cluster, step: Step
) -> tuple[list[Presence], list[Presence]]:
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        reads, src = graph.task_inputs[step.task], memory
        writes, dst = graph.task_outputs[step.task], memory
    else:
        reads, src = (step.tensor,), step.src
        writes, dst = (step.tensor,), step.dst
    return (
        [(tensor, src, item) for tensor in reads for item in step.items],
        [(tensor, dst, item) for tensor in writes for item in step.items],
    )
