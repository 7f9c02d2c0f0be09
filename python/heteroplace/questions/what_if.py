"""A solution and changes of its cluster, or a number of items -> what its plan would take then.

The same plan is taken over as it is, by names, and simulated; if it is asked for, a solver places
the network again. Costs of a device that is added are those of the device that it is like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heteroplace.errors import HeteroPlaceError, MissingCostError, PlanError, SolverError
from heteroplace.files.plan_file import plan_to_json, replayed_plan
from heteroplace.model.answers import WhatIf
from heteroplace.model.check import check_plan
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable, TableBuilder
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory_use.shared_values import first_shared
from heteroplace.model.plan import Load, Plan
from heteroplace.model.solution import Solution
from heteroplace.model.units import format_ns
from heteroplace.questions.changes import Changes, change
from heteroplace.questions.judging import judge, judged_ns
from heteroplace.registry import load_plugin
from heteroplace.simulate.throughput import repeat_plan
from heteroplace.solve.network_solution import solve_network
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.problem import Problem, SolveOptions

_RINGS = "collectives as rings over the links: measured times are of the links as they are"
"""Why a plan may differ from before by more than its links do."""


def what_if(
    solution: Solution,
    *,
    add_device: Mapping[str, str] | None = None,
    drop_device: Sequence[str] = (),
    scale_link: Mapping[str, float] | None = None,
    memory: Mapping[str, str | int] | None = None,
    batch: int | None = None,
    solve: bool = False,
    solver: str = "auto",
    options: SolveOptions | None = None,
) -> WhatIf:
    """Say what the plan would take if things were other than they are.

    Parameters
    ----------
    add_device
        Name of a new device -> name of the device that it is like: costs, and where that has a
        memory of its own, the size of it and its links. A task that may not run everywhere may
        run on it if it may run on that one.
    drop_device
        Names of devices that are not there.
    scale_link
        Name, or pattern, of links or channels -> what their bandwidth is multiplied by.
    memory
        Name of a memory or a device -> its size ("10 GiB", or bytes).
    batch
        So many items at once, where the costs of such batches are known; else one after the other
        in the plan's order. Of a plan for throughput: what a run of so many takes for each.
    solve
        Also place the network again.
    solver, options
        For that; the objective and the items are those of the solution, or `batch`.

    Raises
    ------
    ClusterError
        A change names what there is not.
    SolverError, InfeasibleError, SolverLimitError
        Nothing is to be changed; or the network cannot be placed again.
    """
    changes = Changes(add_device or {}, tuple(drop_device), scale_link or {}, memory or {})
    is_per_item = solution.item_ns is not None
    _check_asked(changes, batch, solve, is_per_item)
    changed = change(solution.cluster, changes)
    graph = _with_added(solution.graph, changed.added)
    items = solution.plan.items if batch is None else batch
    said = (*changed.said, *(() if batch is None else (f"{batch} items at once",)))
    costs = _columns(solution.costs, graph, changed.cluster, changed.like)
    forgets = bool(changes.scale_link and costs.collectives and costs.collectives.fits)
    if forgets and costs.collectives is not None:
        costs = replace(costs, collectives=replace(costs.collectives, fits=()))
    same_ns, note = _same_plan(solution, graph, changed.cluster, costs, batch)
    if forgets and same_ns is not None:
        note = f"{note}; {_RINGS}" if note else _RINGS
    answer = WhatIf(said, changed.cluster, judged_ns(solution), same_ns, note, is_per_item, items)
    if not solve:
        return answer
    objective = THROUGHPUT if is_per_item else "latency"
    chosen = replace(options or SolveOptions(), objective=objective, items=items)
    return replace(answer, solution=_solve(graph, changed.cluster, costs, solver, chosen))


def _check_asked(changes: Changes, batch: int | None, solve: bool, is_per_item: bool) -> None:
    if batch is not None and batch < 1:
        raise SolverError(f"batch must be at least 1, got {batch}")
    if batch is not None and solve and is_per_item:
        raise SolverError(
            f"batch={batch} with solve: the plan is for throughput, and such plans are made for "
            f"one item, however many are under way; give batch, or solve, alone"
        )
    if changes == Changes({}, (), {}, {}) and batch is None and not solve:
        raise SolverError(
            "nothing is to be other than it is: give add_device, drop_device, scale_link, memory, "
            "batch or solve"
        )


def _with_added(graph: TaskGraph, added: Sequence[tuple[str, str]]) -> TaskGraph:
    """The graph whose tasks may run on each added device where they may on the one it is like."""
    if not added or all(task.devices is None for task in graph.tasks):
        return graph
    tasks = []
    for task in graph.tasks:
        names = task.devices
        for new, before in added:
            if names is not None and before in names:
                names = (*names, new)
        tasks.append(replace(task, devices=names))
    return replace(graph, tasks=tuple(tasks))


def _solve(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, solver: str, options: SolveOptions
) -> Solution:
    if graph.routers:
        solution: Solution = load_plugin("routers", "solve")(graph, cluster, costs, options, solver)
        return solution
    shared = first_shared(graph)
    if shared:
        raise SolverError(
            f"graph {graph.name!r} has the {shared}, which no solver places; ask without solve, or "
            f"run `heteroplace shard` again for the other cluster"
        )
    return solve_network(Problem(graph, cluster, costs), options, solver=solver)


def _same_plan(
    solution: Solution, graph: TaskGraph, cluster: Cluster, costs: CostTable, batch: int | None
) -> tuple[int | None, str]:
    """The objective of the plan on another cluster and a note; or None and why there is none."""
    names = {device.name for device in cluster.devices}
    gone = [name for name in solution.devices_used if name not in names]
    if gone:
        return None, f"it has tasks on {', '.join(gone)}"
    value = plan_to_json(solution.plan, solution.graph, solution.cluster)
    try:
        plan = replayed_plan(value, graph, cluster, "the plan")
        plan, note = _of_items(graph, cluster, costs, plan, plan.items if batch is None else batch)
        check_plan(graph, cluster, costs, plan)
        is_per_item = solution.item_ns is not None
        if batch is None or not is_per_item:
            return judge(graph, cluster, costs, plan, is_per_item=is_per_item), note
        # A load of the plan would be that of all its items, in whatever order they come.
        makespan_ns = judge(graph, cluster, costs, plan, is_per_item=False)
        taken = f"a run of {batch} takes {format_ns(makespan_ns)}"
        return -(-makespan_ns // batch), f"{taken}, {note}" if note else taken
    except HeteroPlaceError as err:
        return None, " ".join(str(err).split())


def _of_items(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, plan: Plan, items: int
) -> tuple[Plan, str]:
    if items == plan.items:
        return plan, ""
    if plan.items != 1:
        raise PlanError(
            f"the plan is for {plan.items} items in batches of its own; place it again for {items}"
        )
    if items not in costs.batches:
        note = "one after the other, as the costs of such batches are not known"
        return repeat_plan(plan, items), note
    everything = tuple(range(items))
    steps = tuple(
        step if isinstance(step, Load) else replace(step, items=everything) for step in plan.steps
    )
    together = replace(plan, steps=steps, items=items)
    try:
        judge(graph, cluster, costs, together, is_per_item=False)
    except (PlanError, MissingCostError) as err:
        return repeat_plan(plan, items), f"one after the other, as a batch is not possible: {err}"
    return together, f"as one batch of {items}"


def _columns(
    costs: CostTable, graph: TaskGraph, cluster: Cluster, like: Sequence[int]
) -> CostTable:
    """The table whose devices have the columns `like` of another one."""
    builder = TableBuilder(graph.identities, cluster.identities, costs.batches)
    for batch in costs.batches:
        for task in range(len(graph.tasks)):
            for device in like:
                builder.add(costs.cost(task, device, batch))
    return builder.finalize(costs.collectives)
