"""The optimum for several items by trying every split of every task and every order of batches.

Copies never wait for each other here and move items one by one. Under congestion mode "none" that
is the optimum; under every other mode no plan is shorter. Memory is ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph

Split = tuple[int, ...]
"""Device of each item."""


def optimal_batch_makespan(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    items: int,
    *,
    has_memory: bool = False,
    is_barrier: bool = False,
) -> int | None:
    """Least makespan of all items, one batch of each task on each device at most; None if nothing
    is feasible. For two or three tasks, devices and items only.

    `has_memory`: the memories are limited. `is_barrier`: a task waits for all batches of those that
    it reads from (DiviML's condition 3 as published).
    """
    choices = [
        list(_splits(graph, cluster, costs, task, items)) for task in range(len(graph.tasks))
    ]
    best: int | None = None
    for splits in itertools.product(*choices):
        if has_memory and not _fits(graph, cluster, splits):
            continue
        if _are_together(graph, splits):
            found = _best_order(graph, cluster, costs, splits, best, is_barrier)
            best = found if found is not None else best
    return best


def _splits(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, task: int, items: int
) -> Iterator[Split]:
    for split in itertools.product(range(len(cluster.devices)), repeat=items):
        if all(
            split.count(device) in cluster.devices[device].batch_sizes
            and costs.run_ns(task, device, split.count(device)) is not None
            for device in set(split)
        ):
            yield split


def _are_together(graph: TaskGraph, splits: tuple[Split, ...]) -> bool:
    seen: dict[str, Split] = {}
    labels = [(task.together, split) for task, split in zip(graph.tasks, splits, strict=True)]
    return all(label is None or seen.setdefault(label, split) == split for label, split in labels)


def _fits(graph: TaskGraph, cluster: Cluster, splits: tuple[Split, ...]) -> bool:
    """Weights per device, the largest workspace per device, tensors per memory and item."""
    memory_of = [device.memory for device in cluster.devices]
    kept = {*graph.inputs, *graph.outputs} if cluster.host is not None else set()
    used = [0] * len(cluster.memories)
    for tensor in kept:
        assert cluster.host is not None
        used[cluster.host] += graph.tensors[tensor].bytes * len(splits[0])
    for device, memory in enumerate(memory_of):
        counts = [split.count(device) for split in splits]
        sizes = zip(graph.tasks, counts, strict=True)
        used[memory] += max((task.workspace_bytes * count for task, count in sizes), default=0)
        sizes = zip(graph.tasks, counts, strict=True)
        used[memory] += sum(task.weight_bytes for task, count in sizes if count)
    for tensor, value in enumerate(graph.tensors):
        for item in range(len(splits[0])):
            places = {memory_of[splits[task][item]] for task in value.consumers}
            if value.producer is not None:
                places.add(memory_of[splits[value.producer][item]])
            elif cluster.host is None:
                continue
            for memory in places:
                if memory != cluster.host or tensor not in kept:
                    used[memory] += value.bytes
    return all(use <= memory.bytes for use, memory in zip(used, cluster.memories, strict=True))


def _transfer(cluster: Cluster, num_bytes: int, src: int, dst: int) -> int | None:
    if src == dst:
        return 0
    if not cluster.is_reachable(src, dst):
        return None
    return cluster.transfer_ns(cluster.route(src, dst), num_bytes)


def _best_order(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    splits: tuple[Split, ...],
    limit: int | None,
    is_barrier: bool,
) -> int | None:
    """The least makespan of this split if it is below `limit`, else None."""
    batches = [(task, device) for task, split in enumerate(splits) for device in sorted(set(split))]
    best = limit
    is_found = False

    def ready(task: int, device: int, finish: dict[tuple[int, int], int]) -> int | None:
        """When all tensors are there; None: a producer has not run yet, or there is no way."""
        latest = 0
        if is_barrier:
            before = [(other, d) for other in graph.predecessors[task] for d in splits[other]]
            if not all(batch in finish for batch in before):
                return None
            latest = max((finish[batch] for batch in before), default=0)
        for item, place in enumerate(splits[task]):
            if place != device:
                continue
            for tensor in graph.task_inputs[task]:
                producer = graph.tensors[tensor].producer
                home, made = cluster.host, 0
                if producer is not None:
                    source = (producer, splits[producer][item])
                    if source not in finish:
                        return None
                    home, made = cluster.devices[source[1]].memory, finish[source]
                if home is None:
                    continue
                num_bytes = graph.tensors[tensor].bytes
                time_ns = _transfer(cluster, num_bytes, home, cluster.devices[device].memory)
                if time_ns is None:
                    return None
                latest = max(latest, made + time_ns)
        return latest

    def end(finish: dict[tuple[int, int], int]) -> int | None:
        """When all batches are done and all outputs in the host memory."""
        latest = max(finish.values(), default=0)
        for tensor in graph.outputs:
            producer = graph.tensors[tensor].producer
            if producer is None or cluster.host is None:
                continue
            for device in splits[producer]:
                memory = cluster.devices[device].memory
                time_ns = _transfer(cluster, graph.tensors[tensor].bytes, memory, cluster.host)
                if time_ns is None:
                    return None
                latest = max(latest, finish[producer, device] + time_ns)
        return latest

    def extend(finish: dict[tuple[int, int], int], free: dict[str, int]) -> None:
        nonlocal best, is_found
        if best is not None and max(finish.values(), default=0) >= best:
            return
        if len(finish) == len(batches):
            latest = end(finish)
            if latest is not None and (best is None or latest < best):
                best, is_found = latest, True
            return
        for task, device in batches:
            start = None if (task, device) in finish else ready(task, device, finish)
            if start is None:
                continue
            units = cluster.devices[device].units
            start = max([start, *(free.get(unit, 0) for unit in units)])
            run_ns = costs.run_ns(task, device, splits[task].count(device))
            assert run_ns is not None
            done = start + run_ns
            extend({**finish, (task, device): done}, {**free, **dict.fromkeys(units, done)})

    extend({}, {})
    return best if is_found else None
