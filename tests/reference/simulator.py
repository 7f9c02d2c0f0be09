"""The simulator's rules in the most obvious form: an oracle for the core."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run


def reference_times(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan
) -> list[tuple[int, int]]:
    """Start and finish of every step: after all earlier steps that share a resource with it and
    after the step that put each of its tensors there."""
    times: list[tuple[int, int]] = []
    for index, step in enumerate(plan.steps):
        start = 0
        for earlier in range(index):
            if _resources(cluster, plan, earlier) & _resources(cluster, plan, index):
                start = max(start, times[earlier][1])
            if _puts(graph, cluster, plan, earlier) & _needs(graph, cluster, plan, index):
                start = max(start, times[earlier][1])
        if isinstance(step, Run):
            run_ns = costs.run_ns(step.task, step.device)
            assert run_ns is not None
            finish = start + run_ns
        else:
            finish = start + cluster.transfer_ns(step.route, graph.tensors[step.tensor].bytes)
        times.append((start, finish))
    return times


def _resources(cluster: Cluster, plan: Plan, index: int) -> set[tuple[str, str]]:
    """Units or channels that a step takes."""
    step = plan.steps[index]
    if isinstance(step, Run):
        return {("unit", unit) for unit in cluster.devices[step.device].units}
    return {("channel", cluster.links[link].channel) for link in step.route}


def _puts(graph: TaskGraph, cluster: Cluster, plan: Plan, index: int) -> set[tuple[int, int]]:
    """(tensor, memory) pairs that a step brings about."""
    step = plan.steps[index]
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        return {(tensor, memory) for tensor in graph.task_outputs[step.task]}
    return {(step.tensor, step.dst)}


def _needs(graph: TaskGraph, cluster: Cluster, plan: Plan, index: int) -> set[tuple[int, int]]:
    """(tensor, memory) pairs that a step reads."""
    step = plan.steps[index]
    if isinstance(step, Run):
        memory = cluster.devices[step.device].memory
        return {(tensor, memory) for tensor in graph.task_inputs[step.task]}
    return {(step.tensor, step.src)}
