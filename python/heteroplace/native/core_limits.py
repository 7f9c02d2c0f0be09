"""Times and sizes -> whether every sum of them fits the 64-bit integers of the core.

Checked once, when a `NativeProblem` is made, against the longest plan that there can be: every task
on its slowest device and every tensor copied to every memory where it can be read, all of it one
after the other. What solvers add up (ranks, heads, loads, makespans, bytes of a memory) is at most
a few times that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heteroplace.errors import CostMismatchError, GraphError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.native.core_arrays import IntArray

MAX_PLAN_NS = 2**60
"""All times of a problem together: 36 years."""
MAX_PLAN_BYTES = 2**50
"""All sizes of a problem together; in the core more bytes say that a tensor cannot be reached."""


def check_times(
    graph: TaskGraph, cluster: Cluster, batch_run_ns: IntArray, routes: tuple[IntArray, IntArray]
) -> int:
    """Return a time in ns that no plan of one item is longer than.

    Parameters
    ----------
    batch_run_ns
        [num_batches, num_tasks, num_devices]; negative: the task cannot be there.
    routes
        Links of the way between each two memories, as offsets and values.

    Raises
    ------
    CostMismatchError
        It is more than MAX_PLAN_NS; the message names the longest task or copy.
    """
    slowest = np.maximum(batch_run_ns.max(axis=(0, 2), initial=0), 0).tolist()
    copies = _copy_ns(graph, cluster, routes)
    total: int = sum(slowest) + sum(copies)
    if total > MAX_PLAN_NS:
        if max(slowest, default=0) >= max(copies, default=0):
            longest = max(slowest)
            what = f"task {graph.tasks[slowest.index(longest)].name!r}"
        else:
            longest = max(copies)
            what = f"copying tensor {copies.index(longest)} everywhere"
        raise CostMismatchError(
            f"graph {graph.name!r} on cluster {cluster.name!r}: all tasks on their slowest devices "
            f"and all copies take {total} ns one after the other, {what} alone {longest} ns; "
            f"expected at most {MAX_PLAN_NS} ns together: check the units"
        )
    return total


def check_bytes(graph: TaskGraph, cluster: Cluster) -> int:
    """Return the bytes that a plan of one item can have in all memories together.

    Raises
    ------
    GraphError
        It is more than MAX_PLAN_BYTES; the message names the largest task or tensor.
    """
    of_task = [
        task.weight_bytes + task.workspace_bytes + sum(size for _, size in task.weights)
        for task in graph.tasks
    ]
    of_tensor = [tensor.bytes for tensor in graph.tensors]
    copies = _copy_counts(graph, cluster)
    total = sum(of_task) + sum((1 + n) * size for n, size in zip(copies, of_tensor, strict=True))
    total += sum(size for _, size in graph.buffers) * len(cluster.memories)
    if total > MAX_PLAN_BYTES:
        if max(of_task, default=0) >= max(of_tensor, default=0):
            largest = max(of_task)
            what = f"task {graph.tasks[of_task.index(largest)].name!r}"
        else:
            largest = max(of_tensor)
            what = f"tensor {of_tensor.index(largest)}"
        raise GraphError(
            f"graph {graph.name!r}: weights, workspaces and all copies of tensors have {total} "
            f"bytes, {what} alone {largest}; expected at most {MAX_PLAN_BYTES} together: check the "
            f"units"
        )
    return total


def check_items(items: int, longest_ns: int, max_bytes: int, more_ns: int = 0) -> None:
    """Check that as much as that, so many times, and `more_ns` once are within the limits.

    Raises
    ------
    CostMismatchError
        It is not; the message says how many items are.
    """
    if items * longest_ns + more_ns > MAX_PLAN_NS or items * max_bytes > MAX_PLAN_BYTES:
        most = min(
            (MAX_PLAN_NS - more_ns) // max(1, longest_ns), MAX_PLAN_BYTES // max(1, max_bytes)
        )
        more = f", and {more_ns} ns of collectives," if more_ns else ""
        raise CostMismatchError(
            f"a plan of {items} items; with times of up to {longest_ns} ns and sizes of up to "
            f"{max_bytes} bytes for each of them{more} there can be at most {max(0, most)}"
        )


def _copy_counts(graph: TaskGraph, cluster: Cluster) -> list[int]:
    """For each tensor how many memories it can be copied to: one for each reader, and the host."""
    most = len(cluster.memories) - 1
    return [min(most, len(tensor.consumers) + 1) for tensor in graph.tensors]


def _copy_ns(
    graph: TaskGraph, cluster: Cluster, routes: tuple[IntArray, IntArray]
) -> Sequence[int]:
    """For each tensor the time of all its copies, each over the slowest links there are."""
    if not cluster.links:
        return [0] * len(graph.tensors)
    latencies = sorted((link.latency_ns for link in cluster.links), reverse=True)
    latency_ns = sum(latencies[: _hops(routes)])
    measured_ns = max(max((ns for _, ns in link.measured), default=0) for link in cluster.links)
    slowest = min(link.bytes_per_second for link in cluster.links)
    fixed_ns = latency_ns + measured_ns + 1
    return [
        count * (fixed_ns + tensor.bytes * 1_000_000_000 // slowest)
        for count, tensor in zip(_copy_counts(graph, cluster), graph.tensors, strict=True)
    ]


def _hops(routes: tuple[IntArray, IntArray]) -> int:
    """Links of the longest route."""
    return int(np.diff(routes[0]).max(initial=0))
