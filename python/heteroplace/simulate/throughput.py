"""Plan -> time per item in a steady state without batches; the plan repeated in order of service.

With many items under way at once, each resource serves the steps of one item after those of
another, in whatever order keeps it busy; so the time per item is the largest sum of durations of
the steps of one item on any resource: a unit of a device, or what copies occupy. It is reached if
each step occupies at most one resource (modulo scheduling). Repetitions in plan order may stay far
behind it: a device that is first and last in the plan waits for everything between. The executor
takes the requests of cores in whatever order keeps them busy, those of GPUs and of several hosts in
plan order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heteroplace.model.checks.check_guards import require_unguarded
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Load, Plan, Step
from heteroplace.model.step_values import moved_bytes, occupied, step_ns


def throughput_ns(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> int:
    """Return the time per item of `plan` in ns; 1e9 over it is the throughput in items per second.

    Of a plan of several items it is an equal share of what all of them take, rounded up.

    Raises
    ------
    PlanError
        A step is guarded: how often it is made is not said.
    MissingCostError
        A cost that is needed is unknown.
    """
    require_unguarded(plan, "steady states")
    # Many copies have the same route and size.
    transfers_ns: dict[tuple[tuple[int, ...], int], int] = {}

    def duration_ns(step: Step) -> int:
        if not isinstance(step, Copy):
            return step_ns(graph, cluster, costs, step) or 0
        key = (step.route, moved_bytes(graph, step))
        if key not in transfers_ns:
            transfers_ns[key] = cluster.transfer_ns(*key)
        return transfers_ns[key]

    busiest_ns = max(busy_ns(graph, cluster, plan.steps, map(duration_ns, plan.steps)))
    return -(-busiest_ns // plan.items)


def busy_ns(
    graph: TaskGraph, cluster: Cluster, steps: Iterable[Step], durations_ns: Iterable[int]
) -> list[int]:
    """Return how long steps of the given durations keep each of `cluster.resources` busy, in ns."""
    busy = [0] * len(cluster.resources)
    # Many copies have the same route.
    of_route: dict[tuple[int, ...], tuple[int, ...]] = {}
    for step, duration_ns in zip(steps, durations_ns, strict=True):
        if not isinstance(step, Copy):
            resources = occupied(graph, cluster, step)
        elif step.route in of_route:
            resources = of_route[step.route]
        else:
            resources = of_route[step.route] = occupied(graph, cluster, step)
        for resource in resources:
            busy[resource] += duration_ns
    return busy


def repeat_plan(plan: Plan, count: int) -> Plan:
    """Return the plan that runs `plan` `count` times, each after the other in order of service.

    Nothing waits for the end of a repetition: a resource starts the next one when it is free.

    Raises
    ------
    PlanError
        A step is guarded or loads weights: such plans are of one item.
    """
    require_unguarded(plan, "repetitions")
    steps = (shifted(plan, step, number) for number in range(count) for step in plan.steps)
    return replace(plan, steps=tuple(steps), items=plan.items * count)


def shifted(plan: Plan, step: Step, number: int) -> Step:
    """Return the step for the items of repetition `number`; loads have none."""
    if isinstance(step, Load):
        return step
    return replace(step, items=tuple(item + number * plan.items for item in step.items))
