"""Annotated module -> the solution to build: the attached one, brought up to date with the module.

An `on_device` may have been moved since the plan was written. The module is authoritative: tasks
are put where it says, in the order of the plan. Copies are derived from the new places, so the old
ones in the module do no harm. If the ops of one task are now on several devices, the plan has no
kernel for them. `SplitPlan` says so, and the module needs a new plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm

from heteroplace.entries import load_entry
from heteroplace.errors import ClusterError, LoweringError, PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import MOVED_BY_HAND, Plan, Run
from heteroplace.model.solution import Solution
from heteroplace.native.core_arrays import IMPOSSIBLE
from heteroplace.native.list import evaluate_order
from heteroplace.relay.annotate.annotation_reader import read_solution
from heteroplace.relay.annotate.devices import (
    device_keys,
    distinct,
    op_name,
    read_devices,
    split_faults,
)
from heteroplace.relay.expressions import task_of_span
from heteroplace.simulate.simulator import simulate
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.plan_reasons import explain
from heteroplace.solve.problem import Problem

_THROUGHPUT_NS = "heteroplace.simulate.throughput:throughput_ns"
"""Loaded for a plan for throughput."""


@dataclass(frozen=True)
class SplitPlan:
    """A plan whose tasks are split: annotations put the ops of one task on several devices."""

    faults: tuple[str, ...]
    """One text for each task."""
    attached: Solution
    """The plan that the module carries."""


def follow_annotations(mod: tvm.IRModule) -> Solution | SplitPlan | None:
    """Return what a module that carries a plan is to be built by; None: it carries no plan.

    This is the attached solution if the module's devices are those of its plan. Otherwise the tasks
    are put where the module says. The `origin` and `reasons` of the plan then name what was moved.
    The bound stays, because it holds for every plan.

    Returns
    -------
    A `SplitPlan` if ops of one task are on several devices.

    Raises
    ------
    PlanError
        The plan was not written by this version.
    LoweringError
        An op is on a device that the cluster does not have; ops were added or left out; a task
        cannot run where it was moved.
    """
    attached = read_solution(mod)
    if attached is None or attached.graph.routers:  # whose module names no devices
        return attached
    graph, cluster, plan = attached.graph, attached.cluster, attached.plan
    placement = plan.placement(len(graph.tasks))
    keys = device_keys(cluster)
    ops = _task_ops(mod, graph, cluster)
    if faults := split_faults(graph, cluster, ops):
        return SplitPlan(tuple(faults), attached)
    devices = [next(iter(by_device)) for by_device in ops]
    moved = {
        task: device for task, device in enumerate(devices) if keys[device] != keys[placement[task]]
    }
    if moved and plan.items > 1:
        names = distinct(graph.tasks[task].name for task in moved)
        raise LoweringError(
            f"{names} was moved by hand, and the plan is for {plan.items} items, whose batches the "
            f"annotations do not say; place the model again, with pin= for what shall be elsewhere"
        )
    return _moved(attached, moved) if moved else attached


def _task_ops(mod: tvm.IRModule, graph: TaskGraph, cluster: Cluster) -> list[dict[int, list[str]]]:
    """For each task the names of its ops, by the device that the module gives them."""
    names = {task.name for task in graph.tasks}
    ops: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    strangers = []
    for op, device in read_devices(mod["main"], cluster).items():
        task = task_of_span(op)
        if task in names:
            ops[task][device].append(op.op.name)
        else:
            strangers.append(op_name(op))
    missing = sorted(names - ops.keys())
    if strangers or missing:
        faults = [f"{distinct(strangers)} belongs to no task of the plan"] if strangers else []
        faults += [f"nothing is left of task {distinct(missing)}"] if missing else []
        raise LoweringError(
            f"{' and '.join(faults)}: the module was changed after HeteroPlace ran; run "
            f"HeteroPlace as the last pass, or again on a module without plan"
        )
    return [ops[task.name] for task in graph.tasks]


def _moved(attached: Solution, moved: dict[int, int]) -> Solution:
    """The solution with some tasks moved, in the order of its plan."""
    graph, cluster, costs = attached.graph, attached.cluster, attached.costs
    problem = Problem(graph, cluster, costs)
    old = attached.plan.placement(len(graph.tasks))
    names = {device: cluster.devices[device].name for device in {*old, *moved.values()}}
    barred = [
        f"task {graph.tasks[task].name!r} ({graph.tasks[task].op}) cannot run on "
        f"{names[device]!r}: {_why_not(attached, task, device)}"
        for task, device in moved.items()
        if problem.native.run_ns[task, device] == IMPOSSIBLE
    ]
    if barred:
        raise LoweringError(
            f"{'; '.join(barred)}. Move it to another device, or place the model again"
        )
    placement = [moved.get(task, device) for task, device in enumerate(old)]
    order = [step.task for step in attached.plan.steps if isinstance(step, Run)]
    native_plan = evaluate_order(problem.native, placement, order)
    changes = [f"{graph.tasks[t].name} {names[old[t]]} -> {names[moved[t]]}" for t in sorted(moved)]
    origin = attached.plan.origin.partition(MOVED_BY_HAND)[0] + MOVED_BY_HAND + distinct(changes)
    try:
        plan = problem.native.plan(native_plan.steps, origin)
        check_plan(graph, cluster, costs, plan)
    except (ClusterError, PlanError) as err:
        raise LoweringError(
            f"the module cannot run as it is annotated ({distinct(changes)}): {err}"
        ) from err
    objective = "latency" if attached.item_ns is None else THROUGHPUT
    timeline = simulate(graph, cluster, costs, plan, problem.native)
    plan = explain(problem, plan, objective, timeline)
    plan = _with_notes(plan, moved, [names[device] for device in old])
    makespan = timeline.makespan_ns
    item_ns: int | None = None
    if attached.item_ns is not None:
        item_ns = load_entry(_THROUGHPUT_NS)(graph, cluster, costs, plan)
    changed = replace(
        attached,
        plan=plan,
        predicted_ns=makespan,
        expected=None,
        item_ns=item_ns,
        precision_choice=None,
    )
    return changed.with_timeline(timeline)


def _why_not(attached: Solution, task: int, device: int) -> str:
    value = attached.graph.tasks[task]
    if value.devices is not None and attached.cluster.devices[device].name not in value.devices:
        return f"it may run only on {', '.join(value.devices)} (pin, exclude)"
    cost = attached.costs.cost(task, device)
    if cost.source == "unsupported":
        return cost.reason or "it is not supported there"
    return "the tasks of its colocation group cannot, or no route leads there from the host memory"


def _with_notes(plan: Plan, moved: dict[int, int], was: Sequence[str]) -> Plan:
    reasons = [
        f"moved by hand from {was[task]}; {reason}" if task in moved else reason
        for task, reason in enumerate(plan.reasons)
    ]
    return replace(plan, reasons=tuple(reasons))
