"""Plan + costs -> simulated Timeline, by the core's one-pass simulator (DistIR, section 4)."""

from __future__ import annotations

from heteroplace.entries import load_entry
from heteroplace.errors import PlanError
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Plan, Run, guard_of
from heteroplace.model.routed.decision import Decision
from heteroplace.model.solution import Solution
from heteroplace.model.step_values import channels_of, is_async
from heteroplace.model.timeline import Peak, Span, Timeline
from heteroplace.native.core_problem import NativeProblem
from heteroplace.native.simulate import simulate_steps

_FULL_TABLE = "heteroplace.simulate.decisions:full_table"
"""Loaded for a graph with routers."""


def timeline_of(solution: Solution) -> Timeline:
    """Simulate the plan of a solution; `Solution.timeline` calls this and keeps the result."""
    return simulate(solution.graph, solution.cluster, solution.costs, solution.plan)


def simulate(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    plan: Plan,
    native: NativeProblem | None = None,
    decision: Decision | None = None,
) -> Timeline:
    """Return when each step of `plan` starts and finishes, and what the memories hold.

    A run has a span on its device, a copy one on each channel that it goes over, a collective one
    on each channel that it uses and, unless it leaves them free, on each of its devices. Spans of
    one device never overlap; those of one channel do not either where the cluster's `congestion` is
    "channel" or "bus".

    Parameters
    ----------
    native
        The three as the core has them, if they are there; None: they are made. Of a table by
        capacity it is made of `full_table`.
    decision
        What the routers decide in this run (`model.decision.decision_of`); steps that are not made
        have no spans. None: every step is made, tasks of a branch for as many cells as they can
        have at once or, by a table that is not by capacity, as long as it says.

    Raises
    ------
    PlanError
        A step reads a tensor that no earlier step put there, or a device cannot run a task or a
        batch; the message is that of `check_plan`, with all faults of the plan.
    """
    try:
        if native is None:
            table = load_entry(_FULL_TABLE)(graph, cluster, costs) if graph.routers else costs
            native = NativeProblem(graph, cluster, table)
        times = simulate_steps(native, plan.steps, plan.items, costs, decision)
    except PlanError:
        # The core knows ids only; the check lists all faults and quotes their steps.
        check_plan(graph, cluster, costs, plan)
        raise
    spans: list[Span] = []
    starts, finishes = times.start_ns.tolist(), times.finish_ns.tolist()
    of_device: list[tuple[str, ...]] = [(device.name,) for device in cluster.devices]
    of_route: dict[tuple[int, ...], tuple[str, ...]] = {}
    for index, step in enumerate(plan.steps):
        guard = guard_of(step)
        if decision is not None and guard is not None and not decision.makes(guard):
            continue
        if isinstance(step, Run):
            resources = of_device[step.device]
        elif isinstance(step, Collective):
            devices = () if is_async(graph, cluster, step) else step.devices
            names = (cluster.devices[device].name for device in devices)
            resources = (*names, *channels_of(graph, cluster, step))
        else:
            if step.route not in of_route:
                of_route[step.route] = channels_of(graph, cluster, step)
            resources = of_route[step.route]
        for resource in resources:
            spans.append(Span(index, resource, starts[index], finishes[index]))
    peaks = tuple(
        Peak(time_ns, None if step < 0 else step)
        for time_ns, step in zip(times.peak_ns, times.peak_step, strict=True)
    )
    return Timeline(
        tuple(spans),
        "simulated",
        times.peak_bytes,
        times.makespan_ns,
        plan.items,
        times.used_bytes,
        peaks,
    )
