"""Whether tasks can be anywhere, what memories lack for a plan, and the errors that say so."""

from __future__ import annotations

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory import memory_use
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native.arrays import COPY, IMPOSSIBLE, IntArray
from heteroplace.native.list import heft
from heteroplace.native.problem import NativePlan, NativeProblem
from heteroplace.solve.problem import Problem


def check_possible(problem: Problem) -> None:
    """Raise if some task can be nowhere, or alone fits in no memory.

    Raises
    ------
    InfeasibleError
        Every such task, with the reason for each device.
    """
    graph, cluster, native = problem.graph, problem.cluster, problem.native
    needs = _needs(native)
    is_allowed = native.run_ns != IMPOSSIBLE
    room = np.array([cluster.memories[d.memory].bytes for d in cluster.devices], dtype=np.int64)
    fits = (is_allowed & (needs[:, None] <= room)).any(axis=1)
    faults = []
    for task_id in np.flatnonzero(~fits).tolist():
        task = graph.tasks[task_id]
        allowed = np.flatnonzero(is_allowed[task_id]).tolist()
        if not allowed:
            reasons = "; ".join(
                f"{device.name}: {why_not(problem, task_id, device_id)}"
                for device_id, device in enumerate(cluster.devices)
            )
            faults.append(f"task {task.name!r} can run on no device: {reasons}")
            continue
        need = int(needs[task_id])
        outputs = need - task.weight_bytes - task.workspace_bytes
        capacities = ", ".join(
            f"{cluster.devices[device].name} has "
            f"{format_bytes(cluster.memories[cluster.devices[device].memory].bytes)}"
            for device in allowed
        )
        faults.append(
            f"task {task.name!r} needs {format_bytes(need)} (weights "
            f"{format_bytes(task.weight_bytes)}, outputs {format_bytes(outputs)}, workspace "
            f"{format_bytes(task.workspace_bytes)}) and no allowed device has it: {capacities}"
        )
    if faults:
        raise InfeasibleError(
            "; ".join(faults) + ". Allow another device, or give one of them more memory."
        )


def check_demands(graph: TaskGraph, cluster: Cluster, plan: Plan | None) -> None:
    """Raise for what no costs could mend, so that it is told before they are measured.

    Parameters
    ----------
    graph
        With the devices that its tasks may be on; their workspace need not be known.
    plan
        A plan that is to be kept; None: one is looked for.

    Raises
    ------
    InfeasibleError
        A task alone fits in no memory of the devices that it may be on.
    PlanError
        The plan is not as the graph and the cluster have it.
    """
    anything = build_table(graph, cluster, lambda *_: Cost.given(0))
    check_possible(Problem(graph, cluster, anything))
    if plan is not None:
        check_plan(graph, cluster, anything, plan)


def _needs(native: NativeProblem) -> IntArray:
    """For each task the bytes that it alone needs: weights, workspace and what it makes."""
    needs = native.weight_bytes + native.workspace_bytes
    is_made = native.producer >= 0
    np.add.at(needs, native.producer[is_made], native.tensor_bytes[is_made])
    return needs


def why_not(problem: Problem, task: int, device: int) -> str:
    """Return why `task` cannot be on `device`."""
    graph, cluster = problem.graph, problem.cluster
    devices = graph.tasks[task].devices
    if devices is not None and cluster.devices[device].name not in devices:
        return f"it is allowed on {', '.join(devices) or 'no device'} only"
    cost = problem.costs.cost(task, device)
    if cost.ns is None:
        return cost.reason or cost.source
    group = graph.tasks[task].together
    if group is not None:
        name = cluster.devices[device].name
        for other_id, other in enumerate(graph.tasks):
            if other.together != group:
                continue
            is_pinned = other.devices is not None and name not in other.devices
            if is_pinned or problem.costs.cost(other_id, device).ns is None:
                return f"{other.name!r}, in its colocation group {group!r}, cannot"
    return "no link leads there from the host memory, or back"


def no_placement_error(problem: Problem, is_proven: bool = False) -> InfeasibleError:
    """Return the error for a graph whose tasks fit one by one but not together.

    Of type SolverLimitError unless it is proven that no placement exists.
    """
    graph, cluster = problem.graph, problem.cluster
    weights = sum(task.weight_bytes for task in graph.tasks)
    tensors = sum(tensor.bytes for tensor in graph.tensors)
    made = sum(tensor.bytes for tensor in graph.tensors if tensor.producer is not None)
    lack = weights + made - sum(memory.bytes for memory in cluster.memories)
    is_proven = is_proven or lack > 0
    found = "no placement fits" if is_proven else "no placement that fits was found"
    if lack > 0:
        found += f": all memories together lack {format_bytes(lack)}"
    capacities = ", ".join(f"{m.name} has {format_bytes(m.bytes)}" for m in cluster.memories)
    pairs = [
        f"{src.name} -> {dst.name}"
        for src_id, src in enumerate(cluster.memories)
        for dst_id, dst in enumerate(cluster.memories)
        if not cluster.is_reachable(src_id, dst_id)
    ]
    links = f" No links lead {', '.join(pairs)}." if pairs else ""
    pinned = sum(int((row != IMPOSSIBLE).sum() == 1) for row in problem.native.run_ns)
    advice = "Allow more devices, or give them more memory or links"
    return (InfeasibleError if is_proven else SolverLimitError)(
        f"graph {graph.name!r} on cluster {cluster.name!r}: {found}. It needs "
        f"{format_bytes(weights)} of weights and {format_bytes(tensors)} of tensors (each counted "
        f"once, copies beside); {capacities}.{_lacks(problem)}{links} {pinned} of "
        f"{len(graph.tasks)} tasks can run on one device only. {advice}"
        f"{'.' if is_proven else ', or more time.'}"
    )


def _lacks(problem: Problem) -> str:
    """What the memories lack for the plan that minds them least: HEFT's, unmended."""
    plan = heft(problem.native, range(len(problem.cluster.devices)))
    lacks = [
        f"{name!r} lacks {format_bytes(excess)}"
        for name, excess in excess_bytes(problem, plan).items()
    ]
    return f" For HEFT's placement {', '.join(lacks)}." if lacks else ""


def excess_bytes(problem: Problem, plan: NativePlan) -> dict[str, int]:
    """Return for each memory that a plan overcommits, by name, the bytes that it lacks."""
    graph, cluster = problem.graph, problem.cluster
    copies = plan.rows[plan.rows[:, 0] == COPY]
    pairs = ((tensor, memory) for tensor, memory in copies[:, 1:3].tolist())
    used = memory_use(graph, cluster, plan.devices(len(graph.tasks)).tolist(), pairs)
    return {
        memory.name: need - memory.bytes
        for memory, need in zip(cluster.memories, used, strict=True)
        if need > memory.bytes
    }


def overcommitted_error(problem: Problem, solver: str, plan: NativePlan) -> InfeasibleError:
    """Return the error for a plan that no machine can run."""
    sizes = {memory.name: memory.bytes for memory in problem.cluster.memories}
    short = [
        f"memory {name!r} has {format_bytes(sizes[name])} and lacks {format_bytes(excess)}"
        for name, excess in excess_bytes(problem, plan).items()
    ]
    faults = "; ".join(short) or "a tensor cannot reach a memory where it is read"
    return InfeasibleError(
        f"solver {solver!r} found no plan that fits for graph {problem.graph.name!r} on cluster "
        f"{problem.cluster.name!r}: {faults}. Try solver 'heft' or 'auto', which mend such plans, "
        f"or give these memories more room."
    )


def nearest_allowed(problem: Problem) -> IntArray:
    """Return the device that stands in for each device, [num_tasks, num_devices].

    The device itself where the task can be there, else the fastest one where it can: for tasks of
    one colocation group the one with the least sum of run times. Ties: the lower device id. Every
    task needs an allowed device (see `heft.check_possible`).
    """
    run_ns = problem.native.run_ns
    total = np.where(run_ns == IMPOSSIBLE, np.inf, run_ns.astype(np.float64))
    members: dict[int, list[int]] = {}
    for task, group in enumerate(problem.native.task_group):
        if group >= 0:
            members.setdefault(group, []).append(task)
    for tasks in members.values():
        total[tasks] = total[tasks].sum(axis=0)
    fastest = total.argmin(axis=1)[:, None]
    devices = np.arange(run_ns.shape[1], dtype=np.int64)[None, :]
    nearest: IntArray = np.where(run_ns == IMPOSSIBLE, fastest, devices)
    return nearest
