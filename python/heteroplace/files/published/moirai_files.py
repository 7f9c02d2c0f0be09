"""Moirai's sample data, as JSON: run times per device, transfer times per edge and device pair.

    {"name", "devices": K, "device_memory": [K],
     "tasks": [{"id", "time_ms": [K], "memory"}], "edges": [{"src", "dst", "transfer_ms": [K][K]}]}

As published every edge is a transfer of its own, so each edge is a tensor. Two transfers from one
device or to one device exclude each other, as in Moirai's model (congestion "port").

Where the times are products, those of edge e are represented as bytes[e] / bandwidth[k][l] with no
latency: so they are when they were computed from sizes and bandwidths (the GoogLeNet file: within
10 ns, which is its rounding). Where no sizes and bandwidths reproduce them (example-1), every
distinct matrix has a size of its own, for which each link has a measured time (`Link.measured`):
exact, but sizes say nothing then.

Bytes of products stand for time, one per nanosecond on the slowest link. The file charges tasks
with memory and tensors with none: its unit is scaled by a power of ten until all tensors together
are at most 0.1 % of the smallest memory, and every memory is enlarged by that much.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from heteroplace.files.faults import JsonPath
from heteroplace.files.fields.fields import Count, Name
from heteroplace.files.published.published_instance import (
    NS_PER_MS,
    TENSOR_SHARE,
    Number,
    PublishedInstance,
    check_ends,
    check_ids,
    power_of_ten,
    read_import,
)
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder

_ROUNDING_NS = 10.0
"""The files have five digits after the point of a millisecond."""
_FREE_BYTES_PER_SECOND = 10**15
"""Bandwidth of a pair whose transfers all take no time."""

_Matrix = tuple[tuple[float, ...], ...]
_Numbers = tuple[Number, ...]


class _TaskEntry(Struct, kw_only=True):
    id: Count
    time_ms: _Numbers
    memory: Number


class _EdgeEntry(Struct, kw_only=True):
    src: Count
    dst: Count
    transfer_ms: tuple[_Numbers, ...]


class _Format(Struct, kw_only=True):
    """The file."""

    name: Name
    devices: Count
    device_memory: _Numbers
    tasks: tuple[_TaskEntry, ...]
    edges: tuple[_EdgeEntry, ...]


@dataclass(frozen=True)
class _Edge:
    src: int
    dst: int
    transfer_ns: _Matrix


@dataclass(frozen=True)
class _File:
    name: str
    memories: tuple[float, ...]
    times_ns: dict[int, tuple[float, ...]]
    task_memory: dict[int, float]
    edges: list[_Edge]


@dataclass(frozen=True)
class _Wires:
    """What stands for the transfer times of a file."""

    sizes: list[int]
    """[num_edges], bytes"""
    links: list[Link]
    error_ns: float
    """Largest deviation of a time."""


def import_moirai(path: str | os.PathLike[str]) -> PublishedInstance:
    """Return the instance in the file at `path`.

    Raises
    ------
    GraphError
        The file cannot be read, is malformed (all faults, each with its JSON path), or has a cycle.
    """
    file = _read(path)
    wires = _products(file)
    if wires.error_ns > _ROUNDING_NS:
        wires = _measured(file)
    total_bytes = sum(wires.sizes)
    unit = power_of_ten(total_bytes / (TENSOR_SHARE * max(min(file.memories), 1e-9)))
    cluster = _cluster(file, wires.links, unit, total_bytes)
    graph = _graph(file, wires.sizes, unit)
    ids = {f"task{task}": task for task in file.times_ns}
    rows = tuple(
        tuple(Cost.given(round(ns)) for ns in file.times_ns[ids[task.name]]) for task in graph.tasks
    )
    table = table_from_rows(graph, cluster, rows)
    return PublishedInstance(graph, cluster, table, round(wires.error_ns))


def _read(path: str | os.PathLike[str]) -> _File:
    file, faults = read_import(path, _Format)
    count = file.devices
    if count == 0:
        faults.add(("devices",), "at least one device is needed")

    def check(place: JsonPath, times: tuple[float, ...]) -> None:
        if len(times) != count:
            expected = f"a list of {count} numbers >= 0, one per device"
            faults.expected(place, expected, list(times))

    check(("device_memory",), file.device_memory)
    check_ids(file.tasks, "tasks", faults)
    for index, task in enumerate(file.tasks):
        check(("tasks", index, "time_ms"), task.time_ms)
    times = {task.id: tuple(ms * NS_PER_MS for ms in task.time_ms) for task in file.tasks}
    check_ends(file.edges, ("src", "dst"), times, faults)
    edges = []
    for index, edge in enumerate(file.edges):
        matrix = edge.transfer_ms
        if {len(matrix), *map(len, matrix)} - {count}:
            faults.expected(
                ("edges", index, "transfer_ms"),
                f"a matrix of {count} x {count} numbers >= 0, [from][to]",
                matrix,
            )
        transfer_ns = tuple(tuple(ms * NS_PER_MS for ms in row) for row in matrix)
        edges.append(_Edge(edge.src, edge.dst, transfer_ns))
    faults.check()
    task_memory = {task.id: task.memory for task in file.tasks}
    return _File(file.name, file.device_memory, times, task_memory, edges)


def _products(file: _File) -> _Wires:
    """Sizes and bandwidths nearest to the times: exact if all matrices have one direction."""
    slopes = _slopes(file)
    sizes = [_size(edge.transfer_ns, slopes) for edge in file.edges]
    error = 0.0
    for edge, size in zip(file.edges, sizes, strict=True):
        for src, dst in _pairs(file):
            error = max(error, abs(size * slopes[src][dst] - edge.transfer_ns[src][dst]))

    def link(src: int, dst: int) -> Link:
        slope = slopes[src][dst]
        bandwidth = round(1e9 / slope) if slope else _FREE_BYTES_PER_SECOND
        return _link(src, dst, bandwidth)

    return _Wires(sizes, [link(src, dst) for src, dst in _pairs(file)], error)


def _measured(file: _File) -> _Wires:
    """A size for each distinct matrix, larger for longer ones, and what it takes on each link."""
    matrices = sorted(
        {edge.transfer_ns for edge in file.edges}, key=lambda m: (sum(map(sum, m)), m)
    )
    # A matrix of zeros stays without bytes: what is there at once has no size.
    first = 0 if matrices and not any(map(any, matrices[0])) else 1
    size_of = {matrix: first + index for index, matrix in enumerate(matrices)}

    def link(src: int, dst: int) -> Link:
        points = [(size, round(m[src][dst])) for m, size in size_of.items() if size > 0]
        time_ns = sum(time for _, time in points)
        bandwidth = _FREE_BYTES_PER_SECOND
        if time_ns:
            bandwidth = max(1, sum(size for size, _ in points) * 10**9 // time_ns)
        return _link(src, dst, bandwidth, tuple(points))

    sizes = [size_of[edge.transfer_ns] for edge in file.edges]
    error = max(abs(time - round(time)) for matrix in matrices for row in matrix for time in row)
    return _Wires(sizes, [link(src, dst) for src, dst in _pairs(file)], error)


def _pairs(file: _File) -> list[tuple[int, int]]:
    """All ordered pairs of devices."""
    devices = range(len(file.memories))
    return [(src, dst) for src in devices for dst in devices if src != dst]


def _link(src: int, dst: int, bandwidth: int, measured: tuple[tuple[int, int], ...] = ()) -> Link:
    name = f"device{src}-device{dst}"
    return Link(name, src, dst, bandwidth, 0, name, measured)


def _slopes(file: _File) -> _Matrix:
    """Time per byte of each device pair in ns; the slowest pair has 1.

    The sum of all matrices: their common direction, if they have one.
    """
    count = len(file.memories)
    total = [[0.0] * count for _ in range(count)]
    for edge in file.edges:
        for src, dst in _pairs(file):
            total[src][dst] += edge.transfer_ns[src][dst]
    largest = max(map(max, total))
    return tuple(tuple(value / largest if largest else 0.0 for value in row) for row in total)


def _size(transfer_ns: _Matrix, slopes: _Matrix) -> int:
    """The bytes whose times are nearest to `transfer_ns` (least squares)."""
    square = sum(slope * slope for row in slopes for slope in row)
    if square == 0:
        return 0
    product = sum(
        time * slope
        for times, row in zip(transfer_ns, slopes, strict=True)
        for time, slope in zip(times, row, strict=True)
    )
    return round(product / square)


def _cluster(file: _File, links: list[Link], unit: int, slack: int) -> Cluster:
    memories = tuple(
        Memory(f"device{index}.memory", max(1, round(value * unit) + slack))
        for index, value in enumerate(file.memories)
    )
    devices = tuple(
        Device(f"device{index}", "cuda", "cuda", index, index) for index in range(len(memories))
    )
    return Cluster(f"{file.name}-devices", memories, devices, tuple(links), None, congestion="port")


def _graph(file: _File, sizes: Sequence[int], unit: int) -> TaskGraph:
    builder = TaskGraphBuilder(file.name)
    reads: dict[int, list[str]] = {task: [] for task in file.times_ns}
    for edge, size in zip(file.edges, sizes, strict=True):
        reads[edge.dst].append(builder.add_tensor(f"task{edge.src}", num_bytes=size))
    producers = {edge.src for edge in file.edges}
    outputs = []
    for task, names in reads.items():
        weight_bytes = round(file.task_memory[task] * unit)
        builder.add_task(Task(f"task{task}", "op", weight_bytes=weight_bytes), names)
        if task not in producers:
            outputs.append(builder.add_tensor(f"task{task}", num_bytes=0))
    return builder.finalize(outputs)
