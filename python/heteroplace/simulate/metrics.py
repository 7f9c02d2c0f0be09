"""Plan + Timeline -> how busy everything is, and the rate at which the plan could be repeated.

The rate is that of the load bound of cyclic scheduling: in each repetition a resource must serve
all its steps, so the busiest one limits the repetitions per second. `heteroplace.simulate.pipeline`
makes plans that come as close to it as the steps allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run, Step
from heteroplace.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class ResourceLoad:
    """The time that one resource of `Cluster.resources` serves steps."""

    name: str
    busy_ns: int
    share: float
    """Of the makespan, 0 to 1."""


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What goes over one link."""

    name: str
    num_copies: int
    bytes: int
    """Of all copies; a copy of several items has the bytes of all of them."""
    busy_ns: int
    """Summed over its copies, which may overlap where the congestion mode lets them."""
    share: float
    """`busy_ns` over the makespan; above 1 if copies overlap."""


def resource_loads(cluster: Cluster, plan: Plan, timeline: Timeline) -> tuple[ResourceLoad, ...]:
    """Return the load of each of `cluster.resources`, in that order."""
    durations_ns = [finish_ns - start_ns for start_ns, finish_ns in _times(plan, timeline)]
    return tuple(
        ResourceLoad(name, busy, _share(busy, timeline))
        for name, busy in zip(
            cluster.resources, busy_ns(cluster, plan.steps, durations_ns), strict=True
        )
    )


def busy_ns(cluster: Cluster, steps: Iterable[Step], durations_ns: Iterable[int]) -> list[int]:
    """Return how long steps of the given durations keep each of `cluster.resources` busy, in ns."""
    busy = [0] * len(cluster.resources)
    # Many copies have the same route.
    of_route: dict[tuple[int, ...], tuple[int, ...]] = {}
    for step, duration_ns in zip(steps, durations_ns, strict=True):
        if isinstance(step, Run):
            resources = occupied(cluster, step)
        elif step.route in of_route:
            resources = of_route[step.route]
        else:
            resources = of_route[step.route] = occupied(cluster, step)
        for resource in resources:
            busy[resource] += duration_ns
    return busy


def link_loads(
    graph: TaskGraph, cluster: Cluster, plan: Plan, timeline: Timeline
) -> tuple[LinkLoad, ...]:
    """Return the load of each link of `cluster`, in that order."""
    num_copies, num_bytes, copied_ns = ([0] * len(cluster.links) for _ in range(3))
    for step, (start_ns, finish_ns) in zip(plan.steps, _times(plan, timeline), strict=True):
        if isinstance(step, Run):
            continue
        for link in step.route:
            num_copies[link] += 1
            num_bytes[link] += graph.tensors[step.tensor].bytes * len(step.items)
            copied_ns[link] += finish_ns - start_ns
    return tuple(
        LinkLoad(
            link.name, num_copies[i], num_bytes[i], copied_ns[i], _share(copied_ns[i], timeline)
        )
        for i, link in enumerate(cluster.links)
    )


def steady_state_throughput(cluster: Cluster, plan: Plan, timeline: Timeline) -> float:
    """Return the items per second that no endless repetition of `plan` can exceed.

    It is `plan.items` over the largest busy time of a resource. With unlimited items in flight it
    is reached if each step occupies at most one resource; see `heteroplace.simulate.pipeline`.
    """
    busiest_ns = max(load.busy_ns for load in resource_loads(cluster, plan, timeline))
    return plan.items * 1e9 / busiest_ns if busiest_ns else math.inf


def occupied(cluster: Cluster, step: Step) -> tuple[int, ...]:
    """Return the ids in `cluster.resources` of what `step` occupies, each once."""
    if isinstance(step, Run):
        return cluster.unit_ids[step.device]
    return cluster.route_resources(step.route)


def _times(plan: Plan, timeline: Timeline) -> list[tuple[int, int]]:
    """Start and finish of each step; (0, 0) where a measured timeline has no span of it."""
    times = [(0, 0)] * len(plan.steps)
    for span in timeline.spans:
        times[span.step] = (span.start_ns, span.finish_ns)
    return times


def _share(busy_ns: int, timeline: Timeline) -> float:
    return busy_ns / timeline.makespan_ns if timeline.makespan_ns else 0.0
