"""Graphs, clusters and costs as the flat arrays that the core reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from heteroplace.errors import GraphError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import NO_TIME, UNKNOWN, CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Run, Step

IntArray = npt.NDArray[np.int64]
IntRows = tuple[IntArray, IntArray]
"""A list of lists: offsets and values."""

IMPOSSIBLE = NO_TIME
"""In `NativeProblem.run_ns` and `what_if`: the task cannot be there."""
RUN, COPY, COLLECTIVE, GUARDED = 0, 1, 2, 3
"""In the first column of `NativePlan.rows`; the last two only in those of `simulate_steps`."""


def ints(values: Sequence[int] | IntArray) -> IntArray:
    """Return the values as 64-bit integers.

    Raises
    ------
    GraphError
        One is too large for them.
    """
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as err:
        largest = max(values, key=abs)
        raise GraphError(
            f"the core reads numbers of up to {2**63 - 1}, got {largest}: check the units"
        ) from err


def task_reads(graph: TaskGraph) -> IntRows:
    """Offsets and values of the tensors that each task reads, ascending."""
    consumers = [tensor.consumers for tensor in graph.tensors]
    readers = ints(list(chain.from_iterable(consumers)))
    tensors = np.repeat(np.arange(len(consumers)), [len(tasks) for tasks in consumers])
    offsets = np.zeros(len(graph.tasks) + 1, dtype=np.int64)
    np.cumsum(np.bincount(readers, minlength=len(graph.tasks)), out=offsets[1:])
    # Stable: tensors of one reader keep their order.
    return offsets, tensors[np.argsort(readers, kind="stable")]


def csr(rows: Iterable[Sequence[int]]) -> IntRows:
    """Offsets and values of a list of lists."""
    offsets: list[int] = [0]
    values: list[int] = []
    for row in rows:
        values.extend(row)
        offsets.append(len(values))
    return ints(offsets), ints(values)


def run_order(steps: Iterable[Step]) -> list[int]:
    """Return the tasks in the order of their runs."""
    return [step.task for step in steps if isinstance(step, Run)]


def routes(cluster: Cluster) -> list[tuple[int, ...]]:
    """Link ids for every ordered pair of memories; empty where there is no way."""
    memories = range(len(cluster.memories))
    ways: list[tuple[int, ...]] = []
    for src in memories:
        routes_from = cluster.routes_from(src)
        ways.extend(routes_from.get(dst, ()) for dst in memories)
    return ways


def measured_transfers(cluster: Cluster) -> tuple[IntArray, IntArray, IntArray] | None:
    """Return the points of `Link.measured`: offsets, bytes and times; None if there are none."""
    points = [link.measured for link in cluster.links]
    if not any(points):
        return None
    return (
        ints(np.cumsum([0, *map(len, points)])),
        ints([num_bytes for row in points for num_bytes, _ in row]),
        ints([time_ns for row in points for _, time_ns in row]),
    )


def shared_values(
    graph: TaskGraph,
) -> tuple[IntArray, IntArray, IntArray, IntRows, IntArray] | None:
    """Return what items and tasks share as `src/model/shared_values.h` says; None: nothing."""
    if not graph.has_shared_values:
        return None
    ids: dict[str, int] = {}
    names = [[name for name, _ in task.weights] for task in graph.tasks]
    sizes = {name: num_bytes for task in graph.tasks for name, num_bytes in task.weights}
    weights = csr([ids.setdefault(name, len(ids)) for name in row] for row in names)
    return (
        ints([tensor.shared for tensor in graph.tensors]),
        ints([task.adds for task in graph.tasks]),
        ints([graph.state_of.get(t, -1) for t in range(len(graph.tensors))]),
        weights,
        ints([sizes[name] for name in ids]),
    )


def routed_buffers(graph: TaskGraph) -> tuple[IntArray, IntArray] | None:
    """Return the routed buffer of each tensor, -1: none, and their bytes; None: there are none."""
    if not graph.buffers:
        return None
    ids = {name: index for index, (name, _) in enumerate(graph.buffers)}
    return (
        ints([-1 if t.buffer is None else ids[t.buffer] for t in graph.tensors]),
        ints([num_bytes for _, num_bytes in graph.buffers]),
    )


def group_ids(graph: TaskGraph) -> tuple[int, ...]:
    """A number for the colocation group of each task; -1: it has none."""
    ids: dict[str, int] = {}
    groups = []
    for task in graph.tasks:
        groups.append(-1 if task.together is None else ids.setdefault(task.together, len(ids)))
    return tuple(groups)


def allowed_run_ns(
    graph: TaskGraph, cluster: Cluster, costs: CostTable, task_group: tuple[int, ...], batch: int
) -> IntArray:
    num_devices = len(cluster.devices)
    # UNKNOWN and IMPOSSIBLE are the marks of the table.
    run_ns = np.array(costs.ns[costs.batches.index(batch)], dtype=np.int64).reshape(
        len(graph.tasks), num_devices
    )
    for task_id, task in enumerate(graph.tasks):
        if collective_kind(task.op) is not None:
            run_ns[task_id] = IMPOSSIBLE
        elif task.devices is not None:
            allowed = [device.name in task.devices for device in cluster.devices]
            run_ns[task_id, np.logical_not(allowed)] = IMPOSSIBLE
    for device_id, device in enumerate(cluster.devices):
        if batch not in device.batch_sizes:
            run_ns[:, device_id] = IMPOSSIBLE
    for task_id, device_id in np.argwhere(run_ns == UNKNOWN)[:1].tolist():
        costs.run_ns(task_id, device_id, batch)  # Raises MissingCostError.
    _drop_out_of_reach(run_ns, graph, cluster)
    members: dict[int, list[int]] = {}
    for task_id, group in enumerate(task_group):
        if group >= 0:
            members.setdefault(group, []).append(task_id)
    for tasks in members.values():
        is_barred = (run_ns[tasks] == IMPOSSIBLE).any(axis=0)
        run_ns[np.array(tasks)[:, None], np.flatnonzero(is_barred)] = IMPOSSIBLE
    return run_ns


def _drop_out_of_reach(run_ns: IntArray, graph: TaskGraph, cluster: Cluster) -> None:
    """Forbid devices that inputs cannot reach, or whose outputs cannot reach the host."""
    if cluster.host is None:
        return
    for device_id, device in enumerate(cluster.devices):
        if not cluster.is_reachable(cluster.host, device.memory):
            for tensor in graph.inputs:
                run_ns[list(graph.tensors[tensor].consumers), device_id] = IMPOSSIBLE
        if not cluster.is_reachable(device.memory, cluster.host):
            for tensor in graph.outputs:
                producer = graph.tensors[tensor].producer
                if producer is not None:
                    run_ns[producer, device_id] = IMPOSSIBLE
