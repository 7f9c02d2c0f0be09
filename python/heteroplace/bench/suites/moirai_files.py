"""Moirai's sample data, as JSON: run times per device, transfer times per edge and device pair.

    {"name", "devices": K, "device_memory": [K],
     "tasks": [{"id", "time_ms": [K], "memory"}], "edges": [{"src", "dst", "transfer_ms": [K][K]}]}

As published every edge is a transfer of its own, so each edge is a tensor. A cluster has one
bandwidth per device pair, and a tensor one size, so the times of edge e are represented as
bytes[e] / bandwidth[k][l] with no latency: exact where all matrices are multiples of one, as they
are when they were computed from sizes and bandwidths (the GoogLeNet file: within 10 ns, which is
its rounding). Where they are not multiples (example-1), no sizes and bandwidths reproduce them;
that is an error unless the caller accepts the deviation. Two transfers from one device or to one
device exclude each other, as in Moirai's model (congestion "port").

Bytes of tensors stand for time, one per nanosecond on the slowest link. The file charges tasks
with memory and tensors with none: its unit is scaled by a power of ten until all tensors together
are at most 0.1 % of the smallest memory, and every memory is enlarged by that much.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from heteroplace.bench.suites.imported import (
    NS_PER_MS,
    TENSOR_SHARE,
    Imported,
    power_of_ten,
    read_edges,
    read_import,
    read_tasks,
)
from heteroplace.errors import GraphError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.json_reader import ObjectReader, a_count, a_name, a_number, list_of

_ROUNDING_NS = 10.0
"""The files have five digits after the point of a millisecond."""
_FREE_BYTES_PER_SECOND = 10**15
"""Bandwidth of a pair whose transfers all take no time."""

T = TypeVar("T")
_Matrix = tuple[tuple[float, ...], ...]


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


def import_moirai(path: str | os.PathLike[str], max_error_ratio: float = 0.01) -> Imported:
    """Return the instance in the file at `path`.

    Parameters
    ----------
    max_error_ratio
        Largest deviation of a transfer time that is accepted, as a part of the longest transfer of
        its edge. Deviations of up to 10 ns are always accepted.

    Raises
    ------
    GraphError
        The file cannot be read, is malformed (all faults, each with its JSON path), has a cycle, or
        its transfer times are no products of sizes and bandwidths.
    """
    file = read_import(path, _read)
    slopes = _slopes(file)
    sizes = [_size(edge.transfer_ns, slopes) for edge in file.edges]
    error = _check_fit(os.fspath(path), file, slopes, sizes, max_error_ratio)
    total_bytes = sum(sizes)
    unit = power_of_ten(total_bytes / (TENSOR_SHARE * max(min(file.memories), 1e-9)))
    cluster = _cluster(file, slopes, unit, total_bytes)
    graph = _graph(file, sizes, unit)
    ids = {f"task{task}": task for task in file.times_ns}
    rows = tuple(
        tuple(Cost.given(round(ns)) for ns in file.times_ns[ids[task.name]]) for task in graph.tasks
    )
    return Imported(graph, cluster, table_from_rows(graph.digest(), cluster, rows), error)


def _read(reader: ObjectReader) -> _File:
    name = reader.required("name", a_name, "?")
    count = reader.required("devices", a_count, 0)
    if count == 0:
        reader.faults.add("$.devices", "at least one device is needed")
    memories = reader.required("device_memory", _numbers(count), (1.0,) * max(1, count))
    times, task_memory = {}, {}
    for task, value in read_tasks(reader, "tasks"):
        milliseconds = value.required("time_ms", _numbers(count), (0.0,) * count)
        times[task] = tuple(ms * NS_PER_MS for ms in milliseconds)
        task_memory[task] = value.required("memory", a_number, 0.0)
    edges = []
    for edge in read_edges(reader, "src", "dst", set(times)):
        matrix = edge.reader.required("transfer_ms", _matrix(count), ((0.0,) * count,) * count)
        transfer_ns = tuple(tuple(ms * NS_PER_MS for ms in row) for row in matrix)
        edges.append(_Edge(edge.src, edge.dst, transfer_ns))
    return _File(name, memories, times, task_memory, edges)


def _numbers(count: int) -> Callable[[object], tuple[float, ...]]:
    """A converter of lists of `count` numbers."""
    return _exactly(count, a_number, f"a list of {count} numbers >= 0, one per device")


def _matrix(count: int) -> Callable[[object], _Matrix]:
    """A converter of square matrices of numbers."""
    expected = f"a matrix of {count} x {count} numbers >= 0, [from][to]"
    return _exactly(count, _numbers(count), expected)


def _exactly(
    count: int, convert: Callable[[object], T], expected: str
) -> Callable[[object], tuple[T, ...]]:
    """A converter of lists of `count` elements that `convert` accepts."""
    convert_all = list_of(convert, expected)

    def convert_exactly(value: object) -> tuple[T, ...]:
        found = convert_all(value)
        if len(found) != count:
            raise ValueError(expected)
        return found

    return convert_exactly


def _slopes(file: _File) -> _Matrix:
    """Time per byte of each device pair in ns; the slowest pair has 1.

    The sum of all matrices: their common direction, if they have one.
    """
    count = len(file.memories)
    total = [[0.0] * count for _ in range(count)]
    for edge in file.edges:
        for src, row in enumerate(edge.transfer_ns):
            for dst, time in enumerate(row):
                total[src][dst] += time if src != dst else 0.0
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


def _check_fit(
    path: str, file: _File, slopes: _Matrix, sizes: Sequence[int], max_error_ratio: float
) -> int:
    """Return the largest deviation in ns.

    Raises GraphError with the worst edge if a ratio is over the limit.
    """
    largest, worst_ratio, worst = 0.0, 0.0, ""
    for edge, size in zip(file.edges, sizes, strict=True):
        longest = max(map(max, edge.transfer_ns))
        for src, row in enumerate(slopes):
            for dst, slope in enumerate(row):
                if src == dst:
                    continue
                error = abs(size * slope - edge.transfer_ns[src][dst])
                largest = max(largest, error)
                ratio = error / longest if error > _ROUNDING_NS else 0.0
                if ratio > worst_ratio:
                    worst_ratio = ratio
                    worst = (
                        f"edge {edge.src} -> {edge.dst} from device {src} to {dst}: "
                        f"{edge.transfer_ns[src][dst]:.0f} ns, nearest {size * slope:.0f} ns"
                    )
    if worst_ratio > max_error_ratio:
        raise GraphError(
            f"{path}: the transfer times are no products of sizes and bandwidths; off by up to "
            f"{worst_ratio:.0%} of an edge's longest transfer, at most {max_error_ratio:.0%} is "
            f"accepted. Worst: {worst}. Pass a larger max_error_ratio to import it all the same"
        )
    return round(largest)


def _cluster(file: _File, slopes: _Matrix, unit: int, slack: int) -> Cluster:
    names = [f"device{index}" for index in range(len(file.memories))]
    memories = tuple(
        Memory(f"{name}.memory", max(1, round(value * unit) + slack))
        for name, value in zip(names, file.memories, strict=True)
    )
    devices = tuple(Device(name, "cuda", "", i, i) for i, name in enumerate(names))
    links = []
    for src, row in enumerate(slopes):
        for dst, slope in enumerate(row):
            if src != dst:
                name = f"{names[src]}-{names[dst]}"
                bandwidth = round(1e9 / slope) if slope else _FREE_BYTES_PER_SECOND
                links.append(Link(name, src, dst, bandwidth, 0, name))
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
