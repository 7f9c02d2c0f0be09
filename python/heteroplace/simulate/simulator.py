"""Plan + costs -> simulated Timeline, by the core's one-pass simulator (DistIR, section 4)."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.timeline import Span, Timeline
from heteroplace.native.schedule import NativeProblem


def simulate(graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan) -> Timeline:
    """Return when each step of `plan` starts and finishes.

    A copy that goes over several channels has one span for each, so the spans of one resource
    never overlap. `peak_bytes` follows the static rule of `heteroplace.model.memory`.

    Raises
    ------
    PlanError
        A step reads a tensor that no earlier step put there; `check_plan` lists all faults.
    """
    times = NativeProblem(graph, cluster, costs).simulate(plan.steps)
    spans = []
    starts, finishes = times.start_ns.tolist(), times.finish_ns.tolist()
    for index, step in enumerate(plan.steps):
        if isinstance(step, Run):
            resources = [cluster.devices[step.device].name]
        else:
            resources = list(dict.fromkeys(cluster.links[link].channel for link in step.route))
        for resource in resources:
            spans.append(Span(index, resource, starts[index], finishes[index]))
    return Timeline(tuple(spans), "simulated", times.used_bytes, times.makespan_ns)
