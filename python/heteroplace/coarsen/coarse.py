"""TaskGraph + groups of its tasks -> a smaller TaskGraph, with the way back.

Celeritas, section 5.1 (merging, DOI 10.48550/arXiv.2208.00184), and Moirai, section III-D
(DOI 10.48550/arXiv.2312.04025). No op and no byte is lost: flops and
weights are summed, a group's workspace is the largest of its members (they run one after another),
a tensor that crosses groups stays one tensor, and the tensors that are read inside a group only
become one tensor that nobody reads. So a placement of the groups needs exactly the memory that it
needs when it is expanded, where tensors are never freed. By lifetime the expanded one may need
more, as members start when their own inputs are there, which may be before the group could. Unlike
both papers, where bytes on coarse edges are summed per edge: a tensor that several groups read
counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heteroplace.coarsen.group_costs import GroupCosts
from heteroplace.coarsen.levels import task_dag
from heteroplace.errors import GraphError, InfeasibleError, PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.memory_use.shared_values import first_shared
from heteroplace.model.plan import Collective, Load, Plan, Run, Step
from heteroplace.terminal import listed


@dataclass(frozen=True)
class Coarsening:
    """A graph, its coarse form, and which is which. Made and checked by `coarsen`."""

    fine: TaskGraph
    graph: TaskGraph
    """One task for each group; tensor names are those of `fine`."""
    group_of: tuple[int, ...]
    """For each task of `fine` its task in `graph`."""
    members: tuple[tuple[int, ...], ...]
    """For each task of `graph` its tasks in `fine`, ascending, so in topological order."""
    fine_tensor: tuple[int | None, ...]
    """For each tensor of `graph` the one in `fine`; None: the sum of those inside a group."""

    def project_costs(self, costs: CostTable, cluster: Cluster) -> CostTable:
        """Return the costs of the groups: sums over members, as they run one after another.

        For each batch size of `costs`. A group is unsupported where any member is. Kernels that a
        backend fuses run faster than that; measure those instead.

        Raises
        ------
        InfeasibleError
            No device can run all members of a group.
        CostMismatchError
            `costs` belongs to another graph or cluster.
        MissingCostError
            A cost is unknown.
        """
        costs.check(self.fine, cluster)
        sums = {batch: GroupCosts(costs, self.members, batch) for batch in costs.batches}
        for group in np.flatnonzero(~sums[1].is_possible())[:1].tolist():
            reasons = [sums[1].why_not(group, d) for d in range(len(cluster.devices))]
            raise InfeasibleError(
                f"no device of cluster {cluster.name!r} can run all tasks of group "
                f"{self.graph.tasks[group].name!r}: {'; '.join(reasons)}. Group only tasks that "
                f"have a device in common"
            )

        def cost(group: int, device: int, batch: int = 1) -> Cost:
            return sums[batch].cost(group, device)

        return build_table(self.graph, cluster, cost, costs.batches)

    def expand_placement(self, placement: Sequence[int]) -> tuple[int, ...]:
        """Return the device of each task of `fine` for a device of each task of `graph`."""
        return tuple(placement[group] for group in self.group_of)

    def expand_plan(self, plan: Plan) -> Plan:
        """Return the plan of `fine` that does the same: members run where and when groups did.

        With costs of `project_costs` it is never slower, and needs the same memory where tensors
        are never freed; by lifetime it may need more.

        Raises
        ------
        PlanError
            The plan is not for `graph`, or copies what nobody reads.
        """
        if plan.graph_digest != self.graph.digest():
            raise PlanError(
                f"the plan by {plan.origin!r} is for a graph with digest {plan.graph_digest}; "
                f"expected the coarse graph with {self.graph.digest()}"
            )
        steps: list[Step] = []
        for step in plan.steps:
            if isinstance(step, (Run, Collective)):
                steps.extend(replace(step, task=task) for task in self.members[step.task])
            elif isinstance(step, Load):
                members = (task for group in step.tasks for task in self.members[group])
                steps.append(replace(step, tasks=tuple(sorted(members))))
            else:
                tensor = self.fine_tensor[step.tensor]
                if tensor is None:
                    name = self.graph.tensors[step.tensor].name
                    raise PlanError(
                        f"the plan by {plan.origin!r} copies {name!r}, which is inside a group "
                        f"and which no task reads; drop that step"
                    )
                steps.append(replace(step, tensor=tensor))
        reasons = tuple(plan.reasons[group] for group in self.group_of) if plan.reasons else ()
        return replace(plan, graph_digest=self.fine.digest(), steps=tuple(steps), reasons=reasons)


def coarsen(
    graph: TaskGraph, groups: Sequence[Sequence[int]], *, keeps_inner: bool = True
) -> Coarsening:
    """Return `graph` with one task for each group.

    Parameters
    ----------
    groups
        Task ids; every task is in exactly one group.
    keeps_inner
        Whether tensors that are read inside their group only are charged to memory. False: the
        members of a group become one kernel, and those tensors never exist.

    Raises
    ------
    GraphError
        The groups are no partition, the quotient has a cycle (it is named), or a group has tasks
        that cannot share a device: two colocation groups, or no allowed device in common. Or the
        graph has collectives, shared values or routers, which coarse graphs cannot have.

    Complexity: O(n log n + m).

    >>> builder = TaskGraphBuilder("chain")
    >>> builder.add_task(Task("a", "conv"), reads=[])
    >>> builder.add_task(Task("b", "relu"), reads=[builder.add_tensor("a", (4,), "int8")])
    >>> coarsen(builder.finalize([builder.add_tensor("b")]), [(0, 1)]).graph.tasks[0].op
    'conv+relu'
    """
    _refuse_lost(graph)
    ordered = [tuple(sorted(group)) for group in groups]
    group_of = _partition(graph, ordered)
    _refuse_cycle(graph, ordered, group_of)
    names = _names(graph, ordered)
    tasks = [_merge(graph, group, name) for group, name in zip(ordered, names, strict=True)]
    coarse, inner = _build(graph, tasks, group_of, keeps_inner)
    # The builder sorts tasks, so groups are found again by name.
    position = {task.name: index for index, task in enumerate(coarse.tasks)}
    new_id = [position[name] for name in names]
    members: list[tuple[int, ...]] = [()] * len(ordered)
    for old, group in enumerate(ordered):
        members[new_id[old]] = group
    fine_id = {tensor.name: index for index, tensor in enumerate(graph.tensors)}
    return Coarsening(
        graph,
        coarse,
        tuple(new_id[group] for group in group_of),
        tuple(members),
        tuple(None if t.name in inner else fine_id[t.name] for t in coarse.tensors),
    )


def _refuse_lost(graph: TaskGraph) -> None:
    """Raise for what a coarse graph does not have, rather than leave it out."""
    shared = first_shared(graph)
    if not shared and graph.routers:
        shared = f"router {graph.routers[0].name!r}"
    if not shared and graph.buffers:
        shared = f"routed buffer {graph.buffers[0][0]!r}"
    if shared:
        raise GraphError(
            f"graph {graph.name!r} has the {shared}, which a coarse graph cannot have: coarsen the "
            f"graph of one item without it (of a routed network its expected_view)"
        )


def _partition(graph: TaskGraph, groups: Sequence[tuple[int, ...]]) -> list[int]:
    """The group of each task; raises unless each task has exactly one."""
    group_of = [-1] * len(graph.tasks)
    faults = []
    for index, group in enumerate(groups):
        if not group:
            faults.append(f"group {index} is empty")
        for task in group:
            if task not in range(len(graph.tasks)):
                faults.append(f"group {index} has task {task}; there is no such id")
            elif group_of[task] >= 0:
                name = graph.tasks[task].name
                faults.append(f"task {name!r} is in groups {group_of[task]} and {index}")
            else:
                group_of[task] = index
    missing = [graph.tasks[task].name for task, group in enumerate(group_of) if group < 0]
    if missing:
        faults.append(f"{len(missing)} tasks are in no group: {listed(missing)}")
    if faults:
        raise GraphError(
            f"the groups for graph {graph.name!r} are no partition of its tasks: "
            f"{listed(faults, '; ')}"
        )
    return group_of


def _refuse_cycle(
    graph: TaskGraph, groups: Sequence[tuple[int, ...]], group_of: Sequence[int]
) -> None:
    cycle = task_dag(graph).quotient(group_of, len(groups)).cycle()
    if cycle:
        texts = []
        for group in [*cycle, cycle[0]]:
            names = [graph.tasks[task].name for task in groups[group]]
            texts.append("{" + listed(names, at_most=4) + "}")
        raise GraphError(
            f"the groups for graph {graph.name!r} make a cycle: {' -> '.join(texts)}; group "
            f"segments of a topological order, or only along edges without a second path"
        )


def _names(graph: TaskGraph, groups: Sequence[tuple[int, ...]]) -> list[str]:
    """Of a group of one the name of its task; else first..last, with a mark if that is taken."""
    taken = {task.name for task in graph.tasks}
    names = []
    for group in groups:
        name = graph.tasks[group[0]].name
        if len(group) > 1:
            name = f"{name}..{graph.tasks[group[-1]].name}"
            while name in taken:
                name += "'"
        taken.add(name)
        names.append(name)
    return names


def _merge(graph: TaskGraph, group: tuple[int, ...], name: str) -> Task:
    """The task that stands for a group."""
    tasks = [graph.tasks[task] for task in group]
    if len(tasks) == 1:
        return tasks[0]
    colocated = list(dict.fromkeys(task.together for task in tasks if task.together is not None))
    if len(colocated) > 1:
        raise GraphError(
            f"group {name!r} has tasks of {len(colocated)} colocation groups "
            f"({', '.join(colocated)}); expected at most one. Split the group, or give its tasks "
            f"one 'together'"
        )
    devices = None
    for task in tasks:
        if task.devices is not None:
            before = task.devices if devices is None else devices
            devices = tuple(device for device in before if device in task.devices)
    if devices == ():
        allowed = "; ".join(
            f"{task.name!r} on {', '.join(task.devices) or 'none'}"
            for task in tasks
            if task.devices is not None
        )
        raise GraphError(
            f"group {name!r} has tasks with no allowed device in common: {allowed}. Split the group"
        )
    return Task(
        name,
        "+".join(task.op for task in tasks),
        tuple(member for task in tasks for member in task.members or (task.name,)),
        sum(task.flops for task in tasks),
        sum(task.weight_bytes for task in tasks),
        max(task.workspace_bytes for task in tasks),
        devices,
        colocated[0] if colocated else None,
    )


def _build(
    graph: TaskGraph, tasks: Sequence[Task], group_of: Sequence[int], keeps_inner: bool
) -> tuple[TaskGraph, set[str]]:
    """The coarse graph and the names of the tensors that stand for what is inside a group."""
    builder = TaskGraphBuilder(graph.name)
    reads: list[list[str]] = [[] for _ in tasks]
    inner_bytes = [0] * len(tasks)
    returned = set(graph.outputs)
    for tensor_id, tensor in enumerate(graph.tensors):
        producer = -1 if tensor.producer is None else group_of[tensor.producer]
        readers = sorted({group_of[task] for task in tensor.consumers} - {producer})
        if tensor.consumers and not readers and tensor_id not in returned and producer >= 0:
            inner_bytes[producer] += tensor.bytes
            continue
        for reader in readers:
            reads[reader].append(tensor.name)
        if producer < 0:
            builder.add_input(tensor.name, tensor.shape, tensor.dtype, tensor.bytes)
        else:
            builder.add_tensor(
                tasks[producer].name, tensor.shape, tensor.dtype, tensor.bytes, tensor.name
            )
    taken = {tensor.name for tensor in graph.tensors}
    inner = set()
    for task, num_bytes in zip(tasks, inner_bytes, strict=True):
        if num_bytes and keeps_inner:
            name = f"{task.name}.inner"
            while name in taken:
                name += "'"
            taken.add(name)
            inner.add(builder.add_tensor(task.name, num_bytes=num_bytes, name=name))
    for task, tensors in zip(tasks, reads, strict=True):
        builder.add_task(task, tensors)
    return builder.finalize([graph.tensors[tensor].name for tensor in graph.outputs]), inner
