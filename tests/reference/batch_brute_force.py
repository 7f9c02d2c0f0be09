"""The optimum for several items by trying every split of every task and every order of batches.

Copies never wait for each other here and move items one by one. Under congestion mode "none" that
is the optimum; under every other mode no plan is shorter.

What is left out is what cannot be shorter: splits and orders whose load or longest path is no less
than the best makespan so far, splits that differ only in which item is which, and orders in which a
batch starts before the one taken last, as it could have been taken first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

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
    choices[0] = [split for split in choices[0] if list(split) == sorted(split)]
    loads = [
        {split: _loads(cluster, costs, task, split) for split in choices[task]}
        for task in range(len(graph.tasks))
    ]
    candidates = []
    for splits in itertools.product(*choices):
        if _are_together(graph, splits):
            sums = map(sum, zip(*(loads[t][split] for t, split in enumerate(splits)), strict=True))
            candidates.append((max(sums), splits))
    best: int | None = None
    for load, splits in sorted(candidates):
        if best is not None and load >= best:
            break
        if not has_memory or _fits(graph, cluster, splits):
            best = _best_order(graph, cluster, costs, splits, best, is_barrier)
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


def _loads(cluster: Cluster, costs: CostTable, task: int, split: Split) -> list[int]:
    """Time of each unit that the batches of a task take."""
    load = dict.fromkeys(cluster.units, 0)
    for device in set(split):
        for unit in cluster.devices[device].units:
            load[unit] += costs.run_ns(task, device, split.count(device)) or 0
    return list(load.values())


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


@dataclass
class _Batch:
    """Some items of a task on a device."""

    run_ns: int
    units: tuple[str, ...]
    waits: dict[int, int] = field(default_factory=dict)
    """Of each batch that it reads from, by index, the longest copy."""
    ready_ns: int = 0
    """When what it reads of the host memory is there."""
    behind_ns: int = 0
    """Least time from its end to that of the plan."""


class _UnreachableError(Exception):
    """A tensor has no way to where it is read."""


def _transfer(cluster: Cluster, num_bytes: int, src: int, dst: int) -> int:
    if src == dst:
        return 0
    if not cluster.is_reachable(src, dst):
        raise _UnreachableError
    return cluster.transfer_ns(cluster.route(src, dst), num_bytes)


def _batches(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, splits: tuple[Split, ...], barrier: bool
) -> list[_Batch]:
    """In topological order."""
    pairs = [(task, device) for task, split in enumerate(splits) for device in sorted(set(split))]
    index = {pair: position for position, pair in enumerate(pairs)}
    memory_of = [device.memory for device in cluster.devices]
    found = []
    for task, device in pairs:
        run_ns = costs.run_ns(task, device, splits[task].count(device))
        assert run_ns is not None
        batch = _Batch(run_ns, cluster.devices[device].units)
        for other in graph.predecessors[task] if barrier else ():
            batch.waits.update((index[other, where], 0) for where in splits[other])
        for tensor in graph.task_inputs[task]:
            value = graph.tensors[tensor]
            if value.producer is None:
                if cluster.host is not None:
                    copy_ns = _transfer(cluster, value.bytes, cluster.host, memory_of[device])
                    batch.ready_ns = max(batch.ready_ns, copy_ns)
                continue
            for item, where in enumerate(splits[value.producer]):
                if splits[task][item] == device:
                    copy_ns = _transfer(cluster, value.bytes, memory_of[where], memory_of[device])
                    source = index[value.producer, where]
                    batch.waits[source] = max(batch.waits.get(source, 0), copy_ns)
        found.append(batch)
    for tensor in graph.outputs:
        value = graph.tensors[tensor]
        if value.producer is not None and cluster.host is not None:
            for device in splits[value.producer]:
                source = found[index[value.producer, device]]
                copy_ns = _transfer(cluster, value.bytes, memory_of[device], cluster.host)
                source.behind_ns = max(source.behind_ns, copy_ns)
    for batch in reversed(found):
        for source, copy_ns in batch.waits.items():
            behind_ns = copy_ns + batch.run_ns + batch.behind_ns
            found[source].behind_ns = max(found[source].behind_ns, behind_ns)
    return found


def _best_order(
    graph: TaskGraph,
    cluster: Cluster,
    costs: CostTable,
    splits: tuple[Split, ...],
    limit: int | None,
    is_barrier: bool,
) -> int | None:
    """The least makespan of this split if it is below `limit`, else `limit`."""
    try:
        batches = _batches(graph, cluster, costs, splits, is_barrier)
    except _UnreachableError:
        return limit
    best = limit

    def extend(
        finish: dict[int, int], free: dict[str, int], last_ns: int, makespan_ns: int
    ) -> None:
        nonlocal best
        if len(finish) == len(batches):
            best = makespan_ns
            return
        load = dict(free)
        starts = []
        for number, batch in enumerate(batches):
            if number in finish:
                continue
            for unit in batch.units:
                load[unit] = load.get(unit, 0) + batch.run_ns
            if all(source in finish for source in batch.waits):
                arrivals = [finish[source] + copy_ns for source, copy_ns in batch.waits.items()]
                busy = [free.get(unit, 0) for unit in batch.units]
                starts.append((max([batch.ready_ns, *arrivals, *busy]), number))
        if best is not None and max(load.values(), default=0) >= best:
            return
        for start_ns, number in sorted(starts):
            batch = batches[number]
            done = start_ns + batch.run_ns
            end = max(makespan_ns, done + batch.behind_ns)
            if start_ns >= last_ns and (best is None or end < best):
                after = {**free, **dict.fromkeys(batch.units, done)}
                extend({**finish, number: done}, after, start_ns, end)

    extend({}, {}, 0, 0)
    return best
