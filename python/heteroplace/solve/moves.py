"""What it would cost to move a task elsewhere: the plan with that one task on another device.

Latency of one item: the placement is scheduled again in the plan's order. Throughput: the loads of
the placement. Several items: the plan itself with the task's batches on the other device and the
copies that follow from that, simulated. A colocation group is moved as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.errors import ClusterError, PlanError
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.shared_values import first_shared
from heteroplace.model.plan import Copy, Plan, Run, Step
from heteroplace.model.step_values import items_of, makes, reads
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_loads import placement_loads
from heteroplace.native.list import what_if
from heteroplace.native.simulate import simulate_steps
from heteroplace.solve.feasibility import fits
from heteroplace.solve.objective import THROUGHPUT, objective_ns
from heteroplace.solve.problem import Problem

MAX_WORK = 4_000_000
"""Tasks * moves that are looked at: all of 1,000 tasks on 4 devices, 50 of 20,000."""
_WORK_PER_ITEM = 40
"""How many times the work of a move is in plans of several items, whose steps are made anew, for
each item."""


@dataclass(frozen=True)
class Moves:
    """The objective with single tasks moved."""

    tasks: tuple[int, ...]
    """Those that were asked about, ascending."""
    objective_ns: tuple[tuple[int | None, ...], ...]
    """[tasks][devices]; None: it cannot be there, or a memory would be too small."""
    baseline_ns: int
    """With no task moved, found the same way: what others are compared with. Of a plan that would
    not fit if it were made that way, its own objective, which stands at its own devices too."""


def unmovable(graph: TaskGraph, plan: Plan) -> str:
    """Return why nothing is known of moving tasks of a plan; "": it is."""
    if graph.routers:
        return (
            "steps of this plan are made only if a router says so, and where a task is moved its "
            "copies would need guards of their own; place the model again with the task pinned"
        )
    if plan.loads:
        return "this plan loads weights; place the model again with the task pinned"
    shared = first_shared(graph)
    if shared:
        return (
            f"this plan is an explicit schedule, as the graph has the {shared}; search another "
            f"split of the model by `heteroplace shard`"
        )
    return ""


def most_movable(problem: Problem, plan: Plan) -> int:
    """Return of how many tasks `moves` should be asked: all of a small graph."""
    count = len(problem.graph.tasks)
    factor = 1 if plan.items == 1 else _WORK_PER_ITEM * plan.items
    return min(count, MAX_WORK // max(1, factor * count * len(problem.cluster.devices)))


def moves(problem: Problem, plan: Plan, tasks: Sequence[int], objective: str = "latency") -> Moves:
    """Return what the objective is with each one of `tasks` on each device.

    Parameters
    ----------
    plan
        A plan that is not `unmovable`.
    tasks
        At most `most_movable`, or it takes long.
    objective
        What the plan was made for.
    """
    native = problem.native
    task_ids = tuple(sorted(tasks))
    placement = native.placement(plan.steps)
    if plan.items > 1:
        return _moved_items(problem, plan, task_ids)
    if objective != THROUGHPUT:
        order = [step.task for step in plan.steps if isinstance(step, Run)]
        values = what_if(native, placement, order, task_ids)
        rows = [[None if ns == IMPOSSIBLE else ns for ns in row] for row in values.tolist()]
        baseline = rows[0][placement[task_ids[0]]] if task_ids else 0
    else:
        loads = _Loads(problem, placement)
        devices = range(len(problem.cluster.devices))
        rows = [[loads.moved(task, device) for device in devices] for task in task_ids]
        baseline = loads.value(np.array(placement, dtype=np.int64))
    if baseline is None:
        # The plan is valid: it frees tensors before others come. Made anew, copies come as early as
        # they can, and loads are of many items, whose tensors are all there at once.
        baseline = objective_ns(problem, plan, objective)
        for task, row in zip(task_ids, rows, strict=True):
            row[placement[task]] = baseline
    return Moves(task_ids, tuple(map(tuple, rows)), baseline)


class _Loads:
    """The time per item of placements near one."""

    def __init__(self, problem: Problem, placement: Sequence[int]) -> None:
        self._native = problem.native
        self._placement = np.array(placement, dtype=np.int64)
        self._groups = np.array(self._native.task_group)
        self._cluster = problem.cluster

    def moved(self, task: int, device: int) -> int | None:
        """With a task and its group elsewhere."""
        if self._native.run_ns[task, device] == IMPOSSIBLE:
            return None
        placement = self._placement.copy()
        group = self._groups[task]
        placement[task if group < 0 else self._groups == group] = device
        return self.value(placement)

    def value(self, placement: IntArray) -> int | None:
        """Of a placement; None: it cannot be."""
        loads = placement_loads(self._native, placement)
        return loads.item_ns if loads.fits(self._cluster) else None


def _moved_items(problem: Problem, plan: Plan, tasks: tuple[int, ...]) -> Moves:
    cluster = problem.cluster

    def makespan(steps: Sequence[Step]) -> int | None:
        times = simulate_steps(problem.native, steps, plan.items)
        return times.makespan_ns if fits(problem, times) else None

    rows: list[tuple[int | None, ...]] = []
    for task in tasks:
        row: list[int | None] = []
        for device in range(len(cluster.devices)):
            try:
                row.append(makespan(tuple(moved_steps(problem, plan, task, device))))
            except (PlanError, ClusterError):  # it cannot run such a batch, or nothing leads there
                row.append(None)
        rows.append(tuple(row))
    baseline = makespan(plan.steps)
    assert baseline is not None  # the plan is valid
    return Moves(tasks, tuple(rows), baseline)


def moved_steps(problem: Problem, plan: Plan, task: int, device: int) -> Iterator[Step]:
    """Yield the steps of a plan with one task (and its group) on another device.

    Copies of what nobody moved stay; those of what the task reads or makes are made anew, from
    where the value was first, right before whoever needs them. Runs keep order and items.
    """
    graph, cluster = problem.graph, problem.cluster
    label = graph.tasks[task].together
    moved = {task}
    if label is not None:
        moved |= {index for index, one in enumerate(graph.tasks) if one.together == label}
    touched = {t for one in moved for t in (*graph.task_inputs[one], *graph.task_outputs[one])}
    homes: dict[tuple[int, int], list[int]] = {}
    host = cluster.host

    def brought(tensor: int, memory: int, items: tuple[int, ...]) -> Iterator[Copy]:
        by_home: dict[int, list[int]] = {}
        for item in items_of(graph, tensor, items):
            start = [host] if host is not None and graph.tensors[tensor].producer is None else []
            memories_there = homes.setdefault((tensor, item), start)
            if memories_there and memory not in memories_there:
                by_home.setdefault(memories_there[0], []).append(item)
                memories_there.append(memory)
        for home, items_there in by_home.items():
            yield Copy(tensor, home, memory, cluster.route(home, memory), tuple(items_there))

    for step in plan.steps:
        if isinstance(step, Copy) and step.tensor in touched:
            continue
        if isinstance(step, Run):
            placed = replace(step, device=device) if step.task in moved else step
            for tensor, memory in reads(graph, cluster, placed):
                if tensor in touched:
                    yield from brought(tensor, memory, placed.items)
            step = placed
        yield step
        for tensor, memory in makes(graph, cluster, step):
            for item in items_of(graph, tensor, step.items):
                homes.setdefault((tensor, item), []).append(memory)
    if host is not None:
        for tensor in graph.outputs:
            if tensor in touched:
                yield from brought(tensor, host, tuple(range(plan.items)))
