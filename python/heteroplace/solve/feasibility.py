"""Whether tasks can be anywhere, what memories lack for a plan, and the errors that say so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, build_table
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Step
from heteroplace.model.units import format_bytes
from heteroplace.native.core_arrays import IMPOSSIBLE, IntArray
from heteroplace.native.core_problem import UNREACHABLE_PENALTY, NativePlan, NativeProblem
from heteroplace.native.list import critical_path_order, heft, order_place
from heteroplace.native.simulate import StepTimes, simulate_plan, simulate_steps
from heteroplace.registry import load_plugin
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
        tensors = need - task.weight_bytes - task.workspace_bytes
        capacities = ", ".join(
            f"{cluster.devices[device].name} has "
            f"{format_bytes(cluster.memories[cluster.devices[device].memory].bytes)}"
            for device in allowed
        )
        faults.append(
            f"task {task.name!r} needs {format_bytes(need)} (weights "
            f"{format_bytes(task.weight_bytes)}, inputs and outputs {format_bytes(tensors)}, "
            f"workspace {format_bytes(task.workspace_bytes)}) and no allowed device has it: "
            f"{capacities}"
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
    sizes = {1} if plan is None else {1} | {len(step.items) for step in plan.steps if step.items}
    sizes |= {size for router in graph.routers for own in router.capacities for size in own}
    anything = build_table(graph, cluster, lambda *_: Cost.given(0), tuple(sorted(sizes)))
    view, times = graph, anything
    if graph.routers:
        view, times = load_plugin("routers", "expected-view")(graph, cluster, anything, None)
    check_possible(Problem(view, cluster, times))
    if plan is not None:
        check_plan(graph, cluster, anything, plan)


def _needs(native: NativeProblem) -> IntArray:
    """For each task the bytes that are live in its memory while it runs, whatever else is there:
    weights, workspace, what it reads and what it makes."""
    graph, sizes = native.graph, native.tensor_bytes
    needs = native.weight_bytes + native.workspace_bytes
    is_made = native.producer >= 0
    np.add.at(needs, native.producer[is_made], sizes[is_made])
    # Without a host model inputs are everywhere and charged nowhere.
    is_charged = is_made | (native.cluster.host is not None)
    for task, tensors in enumerate(graph.task_inputs):
        needs[task] += sum(int(sizes[tensor]) for tensor in tensors if is_charged[tensor])
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
    sizes = cluster.devices[device].batch_sizes
    if 1 not in sizes:
        return f"it takes batches of {', '.join(map(str, sizes))} items only"
    return "no link leads there from the host memory, or back"


def no_placement_error(problem: Problem, is_proven: bool = False) -> InfeasibleError:
    """Return the error for a graph whose tasks fit one by one but not together.

    Of type SolverLimitError unless it is proven that no placement exists: by an exact solver, or
    because weights, which are there all the time, are more than all memories hold.
    """
    graph, cluster = problem.graph, problem.cluster
    weights = sum(task.weight_bytes for task in graph.tasks)
    tensors = sum(tensor.bytes for tensor in graph.tensors)
    staying_bytes = 0 if cluster.host is None else sum(graph.tensors[t].bytes for t in _kept(graph))
    lack = weights + staying_bytes - sum(memory.bytes for memory in cluster.memories)
    is_proven = is_proven or lack > 0
    opening = "no placement fits" if is_proven else "no placement that fits was found"
    if lack > 0:
        kept_too = ", model inputs and outputs" if staying_bytes else ""
        opening += f": for weights{kept_too} all memories together lack {format_bytes(lack)}"
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
        f"graph {graph.name!r} on cluster {cluster.name!r}: {opening}. It needs "
        f"{format_bytes(weights)} of weights and {format_bytes(tensors)} of tensors (each counted "
        f"once and never freed, copies beside); {capacities}.{_lacks(problem)}{links} {pinned} of "
        f"{len(graph.tasks)} tasks can run on one device only. {advice}"
        f"{'.' if is_proven else ', or more time.'}"
    )


def _kept(graph: TaskGraph) -> list[int]:
    """Tensors that are in the host memory at the end."""
    return sorted({*graph.inputs, *graph.outputs})


def _lacks(problem: Problem) -> str:
    """What the memories lack at the least of what was tried at once: HEFT and Order-Place."""
    native = problem.native
    tried = {
        "HEFT": heft(native, range(len(problem.cluster.devices))),
        "Order-Place": order_place(native, critical_path_order(native)),
    }
    name, plan = min(tried.items(), key=lambda one: one[1].violation)
    lacks = [
        f"{memory!r} lacks {format_bytes(excess)}"
        for memory, excess in excess_bytes(problem, plan).items()
    ]
    if not lacks:
        return ""
    return f" The plan by {name} comes closest of those tried first: {', '.join(lacks)}."


def excess_bytes(problem: Problem, plan: NativePlan) -> dict[str, int]:
    """Return for each memory that a plan overcommits, by name, the bytes that it lacks.

    Empty for a plan whose tensors do not all reach their readers: it cannot be timed.
    """
    if plan.violation >= UNREACHABLE_PENALTY:
        return {}
    needs = _needed_bytes(problem, simulate_plan(problem.native, plan))
    return {
        memory.name: need - memory.bytes
        for memory, need in zip(problem.cluster.memories, needs, strict=True)
        if need > memory.bytes
    }


def overflow(problem: Problem, steps: Sequence[Step]) -> tuple[int, ...]:
    """Return the bytes that a plan of one item lacks in each memory; all 0: it fits."""
    needs = _needed_bytes(problem, simulate_steps(problem.native, steps))
    memories = problem.cluster.memories
    return tuple(max(0, need - m.bytes) for need, m in zip(needs, memories, strict=True))


def fits(problem: Problem, times: StepTimes) -> bool:
    """Say whether all memories hold what a plan needs, of however many items."""
    needs = _needed_bytes(problem, times)
    return all(need <= m.bytes for need, m in zip(needs, problem.cluster.memories, strict=True))


def _needed_bytes(problem: Problem, times: StepTimes) -> tuple[int, ...]:
    """What a plan needs in each memory, by the rule of the problem."""
    return times.peak_bytes if problem.frees_tensors else times.used_bytes


def overcommitted_error(problem: Problem, solver: str, plan: NativePlan) -> SolverLimitError:
    """Return the error for a plan that no machine can run, which proves nothing of others."""
    sizes = {memory.name: memory.bytes for memory in problem.cluster.memories}
    short = [
        f"memory {name!r} has {format_bytes(sizes[name])} and lacks {format_bytes(excess)}"
        for name, excess in excess_bytes(problem, plan).items()
    ]
    faults = "; ".join(short) or "a tensor cannot reach a memory where it is read"
    return SolverLimitError(
        f"solver {solver!r} found no plan that fits for graph {problem.graph.name!r} on cluster "
        f"{problem.cluster.name!r}: {faults}. Try solver 'heft' or 'auto', which mend such plans, "
        f"or give these memories more room."
    )


def nearest_allowed(problem: Problem) -> IntArray:
    """Return the device that stands in for each device, [num_tasks, num_devices].

    The device itself where the task can be there, else the fastest one where it can: for tasks of
    one colocation group the one with the least sum of run times. Ties: the lower device id. Every
    task needs an allowed device (see `check_possible`).
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
