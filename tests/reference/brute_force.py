"""The optimum by trying every placement and every order of runs and copies."""

from __future__ import annotations

import itertools

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.memory import memory_use


def optimal_makespan(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> int | None:
    """Least makespan over all placements and orders whose copies leave the tensor's home over
    `Cluster.route`; None if nothing is feasible. For a handful of tasks only."""
    best: int | None = None
    devices = range(len(cluster.devices))
    for placement in itertools.product(devices, repeat=len(graph.tasks)):
        copies = _copies(graph, cluster, costs, placement)
        if copies is None:
            continue
        found = _best_order(graph, cluster, costs, placement, copies, best)
        if found is not None and (best is None or found < best):
            best = found
    return best


def _copies(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, placement: tuple[int, ...]
) -> list[tuple[int, int, int]] | None:
    """(tensor, src, dst) of every copy the placement needs; None if it is not allowed."""
    labels: dict[str, int] = {}
    for task_id, task in enumerate(graph.tasks):
        device = placement[task_id]
        if costs.run_ns(task_id, device) is None:
            return None
        if task.devices is not None and cluster.devices[device].name not in task.devices:
            return None
        if task.together is not None and labels.setdefault(task.together, device) != device:
            return None
    memory = [cluster.devices[device].memory for device in placement]
    copies = []
    for tensor_id, tensor in enumerate(graph.tensors):
        home = cluster.host if tensor.producer is None else memory[tensor.producer]
        if home is None:
            continue
        wanted = {memory[task] for task in tensor.consumers}
        if tensor_id in graph.outputs and cluster.host is not None:
            wanted.add(cluster.host)
        for dst in sorted(wanted - {home}):
            if not cluster.is_reachable(home, dst):
                return None
            copies.append((tensor_id, home, dst))
    used = memory_use(graph, cluster, placement, [(tensor, dst) for tensor, _, dst in copies])
    if any(need > m.bytes for need, m in zip(used, cluster.memories, strict=True)):
        return None
    return copies


def _best_order(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    placement: tuple[int, ...],
    copies: list[tuple[int, int, int]],
    limit: int | None,
) -> int | None:
    """Depth-first search over the orders in which steps start; prunes at `limit`."""
    # A job is (duration, resources, needs, key); a run's key is its task, a copy's its pair.
    jobs = []
    made_by = {(tensor, dst): (tensor, dst) for tensor, _, dst in copies}
    for task, device in enumerate(placement):
        memory = cluster.devices[device].memory
        needs = []
        for tensor in graph.task_inputs[task]:
            producer = graph.tensors[tensor].producer
            if (tensor, memory) in made_by:
                needs.append(("copy", tensor, memory))
            elif producer is not None:
                needs.append(("run", producer, 0))
        run_ns = costs.run_ns(task, device)
        assert run_ns is not None
        jobs.append((run_ns, cluster.devices[device].units, needs, ("run", task, 0)))
    for tensor, src, dst in copies:
        route = cluster.route(src, dst)
        producer = graph.tensors[tensor].producer
        needs = [] if producer is None else [("run", producer, 0)]
        channels = tuple("channel " + cluster.links[link].channel for link in route)
        time_ns = cluster.transfer_ns(route, graph.tensors[tensor].bytes)
        jobs.append((time_ns, channels, needs, ("copy", tensor, dst)))
    best = limit
    is_found = False

    def extend(done: dict[tuple[str, int, int], int], free: dict[str, int], latest: int) -> None:
        nonlocal best, is_found
        if best is not None and latest >= best:
            return
        if len(done) == len(jobs):
            best, is_found = latest, True
            return
        for duration, resources, needs, key in jobs:
            if key in done or any(need not in done for need in needs):
                continue
            start = max((done[need] for need in needs), default=0)
            start = max([start, *(free.get(resource, 0) for resource in resources)])
            finish = start + duration
            occupied = {**free, **dict.fromkeys(resources, finish)}
            extend({**done, key: finish}, occupied, max(latest, finish))

    extend({}, {}, 0)
    return best if is_found else None
