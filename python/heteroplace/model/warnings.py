"""A valid plan -> what in it is wasted: steps that could be left out, or be shorter.

DistIR's warnings (section 2), which are no faults: the plan runs as it is.
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.graphs.resident_state import uses_state
from heteroplace.model.plan import Copy, Load, Plan
from heteroplace.model.step_values import Value, items_of, values_made, values_read
from heteroplace.model.text.plan_text import quote_step


def plan_warnings(graph: TaskGraph, cluster: Cluster, plan: Plan) -> list[str]:
    """Return what is wasted, each with its step, in plan order; the plan must pass `check_plan`.

    Values that a run or a collective makes and that nothing reads (a copy that nobody reads is a
    fault), and copies over a memory in which only they read the value although a shorter route
    leads past it.
    """
    readers: dict[Value, list[int]] = {}
    for index, step in enumerate(plan.steps):
        for value in values_read(graph, cluster, step):
            readers.setdefault(value, []).append(index)
    warnings = []
    brought: dict[Value, int] = {}
    needed = {*graph.outputs, *(tensor for _, tensor in graph.updates)}
    for index, step in enumerate(plan.steps):
        if isinstance(step, Load):
            continue
        quoted = quote_step(plan, index, graph, cluster)
        if isinstance(step, Copy):
            values = [(step.tensor, step.src, i) for i in items_of(graph, step.tensor, step.items)]
            before = {brought.get(value, -1) for value in values}
            is_alone = all(readers[value] == [index] for value in values)
            if is_alone and len(before) == 1 and before != {-1} and step.tensor not in needed:
                first = plan.steps[before.pop()]
                assert isinstance(first, Copy)
                if _is_shorter(cluster, first, step):
                    over, src = cluster.memories[step.src].name, cluster.memories[first.src].name
                    warnings.append(
                        f"{quoted}: nothing else reads the tensor in memory {over!r}; a route "
                        f"leads from {src!r} past it"
                    )
            brought.update(dict.fromkeys(values_made(graph, cluster, step), index))
            continue
        for tensor in graph.task_outputs[step.task]:
            values = [each for each in values_made(graph, cluster, step) if each[0] == tensor]
            is_lost = tensor not in needed and not uses_state(graph.tasks[step.task])
            if readers.keys().isdisjoint(values) and is_lost:
                name = graph.tensors[tensor].name
                warnings.append(f"{quoted}: nothing reads tensor {name!r} after it")
    return warnings


def _is_shorter(cluster: Cluster, first: Copy, second: Copy) -> bool:
    """Whether a route leads past the memory between two copies, over fewer links."""
    way = cluster.routes_from(first.src).get(second.dst)
    return way is not None and len(way) < len(first.route) + len(second.route)
