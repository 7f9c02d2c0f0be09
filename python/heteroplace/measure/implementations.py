"""A cluster -> the same with a device for each other way to make its kernels.

An implementation of a task is a device: beside a CPU stands its twin, on the same cores and in the
same memory, whose target has the key of TVM's own kernels. Devices that share cores never run at
once, so a solver chooses kernels together with the place, a cost table has a column for each
implementation, and a plan names the one that it took. The two share a segment (`lower_network`):
layouts are those of the device itself, and a value goes from one to the other as it is.

A task may run on a twin where its kernels differ there, so equal ones are measured once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from heteroplace.codegen.compile import CompiledNetwork
from heteroplace.codegen.targets import with_stock_kernels
from heteroplace.errors import SolverError
from heteroplace.measure.kernel_identity import describe_kernels
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import allowed_devices, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import with_devices
from heteroplace.model.implementations import TWIN
from heteroplace.model.plan import devices_of
from heteroplace.model.solution import Solution
from heteroplace.relay.tasks.network import Network


def with_implementations(
    network: Network, cluster: Cluster, items: int = 1
) -> tuple[Network, Cluster]:
    """Return a network and a cluster with a twin of each CPU on which some kernel differs.

    The network is lowered for each target, not compiled. Without any difference both are returned
    as they are.

    Raises
    ------
    SolverError
        There are several items, routers or values with versions: each of their kernels has one
        implementation.
    LoweringError
        An op cannot be compiled for some target.
    """
    compiled, graph = CompiledNetwork.of(network), network.graph
    if items > 1 or graph.routers or graph.has_shared_values:
        raise SolverError(
            "kernels='best' chooses for each task of one item, without routers and values that "
            "devices share; give kernels='auto' or 'tvm'"
        )
    count = len(cluster.devices)
    stock = with_stock_kernels(cluster).devices
    bases = [
        index
        for index, device in enumerate(cluster.devices)
        if device.kind == "cpu" and device.target != stock[index].target
    ]
    twins = [
        replace(stock[index], name=TWIN.format(cluster.devices[index].name)) for index in bases
    ]
    both = replace(cluster, devices=(*cluster.devices, *twins))
    allowed = allowed_devices(graph, cluster)
    devices = [[cluster.devices[index].name for index in ids] for ids in allowed]
    kept = set(range(count))
    for position, base in enumerate(bases):
        placement = [base if base in ids else ids[0] for ids in allowed]
        twin = count + position
        for task in differing_tasks(compiled, both, placement, base, twin):
            devices[task].append(twins[position].name)
            kept.add(twin)
    if len(kept) == count:
        return network, cluster
    tasks = tuple(
        replace(task, devices=tuple(names))
        for task, names in zip(graph.tasks, devices, strict=True)
    )
    return network.with_graph(replace(graph, tasks=tasks)), with_devices(both, sorted(kept))


def differing_tasks(
    compiled: CompiledNetwork, cluster: Cluster, placement: Sequence[int], base: int, twin: int
) -> list[int]:
    """Return the tasks on device `base` that have other kernels on device `twin`."""
    other = [twin if device == base else device for device in placement]
    mine, theirs = (_task_kernels(compiled, cluster, each) for each in (placement, other))
    return [
        task
        for task, device in enumerate(placement)
        if device == base and mine[task] != theirs[task]
    ]


def _task_kernels(
    compiled: CompiledNetwork, cluster: Cluster, placement: Sequence[int]
) -> list[list[str]]:
    """The identities of each task's kernels."""
    calls = compiled.calls(cluster, placement)
    kernels = describe_kernels(calls)
    found: dict[str, list[str]] = defaultdict(list)
    for call in calls.calls:
        found[call.task].append(kernels[call.kernel].identity)
    return [sorted(found[task.name]) for task in compiled.graph.tasks]


def without_unused_twins(solution: Solution, graph: TaskGraph, cluster: Cluster) -> Solution:
    """Return a solution without the twins, if its plan uses none of them.

    Parameters
    ----------
    graph, cluster
        Before `with_implementations`.
    """
    count = len(cluster.devices)
    used = {device for step in solution.plan.steps for device in devices_of(step)}
    if len(solution.cluster.devices) == count or max(used, default=0) >= count:
        return solution
    twins = {device.name for device in solution.cluster.devices[count:]}
    tasks = tuple(
        replace(task, devices=before.devices)
        for task, before in zip(solution.graph.tasks, graph.tasks, strict=True)
    )
    plain = replace(solution.graph, tasks=tasks)
    rows = tuple(row[:count] for row in solution.costs.rows)
    return replace(
        solution,
        graph=plain,
        cluster=cluster,
        plan=replace(solution.plan, graph_digest=plain.digest(), cluster_digest=cluster.digest()),
        costs=table_from_rows(plain, cluster, rows),
        singles=tuple(single for single in solution.singles if single[0] not in twins),
    )
