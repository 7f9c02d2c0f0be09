"""A plan whose branches have their weights within a budget -> what is held where, as text."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.weight_room import held_weights
from heteroplace.model.plan import Load, Plan, guard_of
from heteroplace.model.units import format_bytes


def weights_text(graph: TaskGraph, cluster: Cluster, plan: Plan) -> str:
    """Return a line for each memory where branches run: what stays, the room for what is loaded, of
    which budget, and of how many tasks weights are loaded, some of them ahead; "": there is no
    budget."""
    if plan.weights_budget is None:
        return ""
    lines = []
    for held in held_weights(graph, cluster, plan):
        loads = [load for load in plan.loads if load.dst == held.memory]
        lines.append(
            f"weights of branches in {cluster.memories[held.memory].name}: at most "
            f"{format_bytes(held.total_bytes)} of a budget of {format_bytes(plan.weights_budget)} "
            f"({format_bytes(held.stays_bytes)} stay, {format_bytes(held.room_bytes)} for loads of "
            f"{_num_tasks(loads)} tasks, {_num_tasks(loads, 'predicted')} of them ahead)"
        )
    return "\n".join(lines)


def _num_tasks(loads: list[Load], when: str | None = None) -> int:
    """Of how many tasks weights are loaded, or are if something holds."""
    tasks: set[int] = set()
    for load in loads:
        guard = guard_of(load)
        if when is None or (guard is not None and guard.when == when):
            tasks.update(load.tasks)
    return len(tasks)
