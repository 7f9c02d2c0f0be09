"""A routed network as an ordinary one, which every solver can place; a plan of it gets its guards.

Solvers know nothing of routers. They see each task of a branch as one that always runs, for as long
as it takes on average, and of its rows as many bytes as there are on average. What they find is a
plan of the network too, once its steps are guarded: in each run those are left out that the router
does not choose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import ceil

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Guard, Plan, Run, Step
from heteroplace.model.routed.route_profile import RouteProfile
from heteroplace.model.routed.routed_values import branch_of_rows
from heteroplace.model.step_values import Place, makes
from heteroplace.simulate.decisions import expected_table, load_shares


def expected_view(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    profile: RouteProfile | None,
    predicted: Collection[tuple[int, int]] = (),
) -> tuple[TaskGraph, CostTable]:
    """Return a network without routers, of equal ids, and its costs, for solvers.

    Room for all routed buffers is set aside as scratch memory of each task that reads or makes
    their rows, beside the rows themselves: a plan that fits then fits with whole buffers too.

    Parameters
    ----------
    costs
        By capacity.
    profile
        What is known of the decisions; None: all branches of a router are alike.
    predicted
        As in `load_shares`.

    Raises
    ------
    MissingCostError, RoutingError
        As `expected_table`.
    """
    table = expected_table(graph, cluster, costs, profile, predicted)
    shares = load_shares(graph, profile)
    tensors = []
    for tensor in graph.tensors:
        branch = None if tensor.buffer is None else branch_of_rows(graph, tensor)
        num_bytes = tensor.bytes
        if branch is not None:
            router = graph.routers[branch[0]]
            mean = sum(load * share for load, share in shares[router.name, branch[1]])
            num_bytes = ceil(mean * (tensor.bytes // router.num_cells))
        tensors.append(replace(tensor, bytes=num_bytes, buffer=None))
    room = sum(size for _, size in graph.buffers)
    tasks = []
    for task_id, task in enumerate(graph.tasks):
        touched = (*graph.task_inputs[task_id], *graph.task_outputs[task_id])
        is_routed = any(graph.tensors[tensor].buffer is not None for tensor in touched)
        workspace = task.workspace_bytes + (room if is_routed else 0)
        tasks.append(replace(task, branch=None, workspace_bytes=workspace))
    view = replace(graph, tasks=tuple(tasks), tensors=tuple(tensors), routers=(), buffers=())
    return view, replace(table, tasks=view.identities)


def guarded(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Plan:
    """Return a plan of the expected view of a routed network as one of the network itself.

    Runs in branches and copies of their rows and results are guarded by their branch; the loads are
    brought to where a guard lacks them. A graph without routers has the same plan.

    Raises
    ------
    PlanError
        The plan has several items or is guarded already, or the loads cannot reach a memory.
    """
    if not graph.routers:
        return plan
    if plan.items != 1 or plan.is_guarded:
        raise PlanError(
            f"the plan by {plan.origin!r} is for {plan.items} items, or guarded already; expected "
            f"one item and no guards: solve the network that expected_view returns"
        )
    steps = tuple(_Guarding(graph, cluster).steps(plan))
    return replace(plan, graph_digest=graph.digest(), steps=steps)


class _Guarding:
    """Walks a plan once, remembering where which tensors are."""

    def __init__(self, graph: TaskGraph, cluster: Cluster) -> None:
        self._graph = graph
        self._cluster = cluster
        self._there: set[Place] = set()
        """Places of tensors that are made or copied so far."""

    def steps(self, plan: Plan) -> Iterator[Step]:
        """The steps of the plan, guarded."""
        for step in plan.steps:
            if isinstance(step, Run):
                guard = _guard_of_task(self._graph, step.task)
                step = replace(step, guard=guard)
            elif isinstance(step, Copy):
                if (step.tensor, step.dst) in self._there:
                    continue  # Loads that a guard has needed earlier.
                guard = _guard_of_tensor(self._graph, step.tensor)
                if guard is not None:
                    loads = self._graph.routers[guard.router].loads
                    yield from bring(self._graph, self._cluster, self._there, loads, step.src)
                step = replace(step, guard=guard)
            yield step
            self._there.update(makes(self._graph, self._cluster, step))


def bring(
    graph: TaskGraph, cluster: Cluster, there: set[Place], tensor: int, memory: int
) -> Iterator[Copy]:
    """Yield the copies that bring what a router decides to a memory.

    They begin at the first memory that has it. If the router is in a branch, they are guarded by
    that one, whose loads are brought first.

    Parameters
    ----------
    there
        Places of tensors so far; those of the copies are added.

    Raises
    ------
    PlanError
        No memory that has the tensor has a route there.
    """
    if (tensor, memory) in there:
        return
    for src in sorted(place[1] for place in there if place[0] == tensor):
        route = cluster.routes_from(src).get(memory)
        if route:
            guard = _guard_of_tensor(graph, tensor)
            if guard is not None:
                yield from bring(graph, cluster, there, graph.routers[guard.router].loads, src)
            copy = Copy(tensor, src, memory, route, guard=guard)
            there.add((tensor, memory))
            yield copy
            return
    raise PlanError(
        f"{graph.tensors[tensor].name!r}, which a router decides, cannot reach memory "
        f"{cluster.memories[memory].name!r}, where steps are guarded by it"
    )


def _guard_of_task(graph: TaskGraph, task: int) -> Guard | None:
    around = graph.branches[task]
    return Guard(*around[0]) if around else None


def _guard_of_tensor(graph: TaskGraph, tensor: int) -> Guard | None:
    """The guard of copies of rows of a branch, or of what is made in one."""
    tensor_record = graph.tensors[tensor]
    if tensor_record.buffer is not None:
        branch = branch_of_rows(graph, tensor_record)
        return None if branch is None else Guard(*branch)
    return None if tensor_record.producer is None else _guard_of_task(graph, tensor_record.producer)
