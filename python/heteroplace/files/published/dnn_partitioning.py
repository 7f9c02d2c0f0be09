"""Task-graph JSON of "Efficient Algorithms for Device Placement of DNN Graph Operators" (2020).

A file has the numbers of accelerators ("FPGA" there) and CPUs, one memory size for all
accelerators, and for each node two run times, a size, a colour class and whether accelerators
support it. Here:

- Every accelerator has a memory of its own, all CPUs share the host's, which has no limit.
- Nodes of one colour class are `together`; unsupported ones may run on CPUs only.
- A node's size is `weight_bytes`. Its output is one tensor, copied once per memory (the paper moves
  an output once per device); where edges of a node differ in cost, one tensor per cost.
- The cost of an edge is the time between an accelerator and the host. From one accelerator to
  another data go through the host: a direct link of half the bandwidth takes the sum of both. It
  contends on the sender's side only.
- The bytes of tensors stand for time: one byte is `quantum_ns` on a host link, a power of ten so
  that all tensors together are at most 0.1 % of an accelerator's memory, which the paper charges
  with node sizes only. So a plan that fits here fits there.

With `is_steady` what counts is the paper's load of an accelerator: its run times and its transfers
with the host, one after the other. So a copy occupies the accelerators at both of its ends
(`copy_engines` 0), and nothing else: from one to another it goes over the host, at the cost of one
transfer to each. Unlike here, the paper moves an output to the host once for several accelerators.

Without it accelerators compute while they copy, as in the package's other instances; in the paper
they do not, and run contiguous parts of the graph: makespans are not its latencies.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from heteroplace.errors import GraphError
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
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.model.units import MAX_INTEGER

_HOST_BYTES = 2**50
_MAX_QUANTUM_NS = 10**8


class _Node(Struct, kw_only=True):
    id: Count
    name: Name
    cpu_ms: Number = field(name="cpuLatency")
    accelerator_ms: Number = field(name="fpgaLatency")
    size: Number
    color: Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)] | UnsetType = field(
        default=UNSET, name="colorClass"
    )
    is_supported: bool | Literal[0, 1] = field(name="supportedOnFpga")


class _Edge(Struct, kw_only=True):
    src: Count = field(name="sourceId")
    dst: Count = field(name="destId")
    cost: Number


class _Format(Struct, kw_only=True):
    """The file."""

    accelerator_bytes: Number = field(name="maxSizePerFPGA")
    num_accelerators: Count = field(name="maxFPGAs")
    num_cpus: Count = field(name="maxCPUs")
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]


@dataclass(frozen=True)
class _File:
    accelerator_bytes: float
    num_accelerators: int
    num_cpus: int
    nodes: dict[int, _Node]
    edges: list[tuple[int, int, float]]


def import_dnn_partitioning(
    path: str | os.PathLike[str], *, is_steady: bool = False
) -> PublishedInstance:
    """Return the instance in the file at `path`.

    Parameters
    ----------
    is_steady
        Time per item is asked for, with the paper's load of a device; else the latency of one item.

    Raises
    ------
    GraphError
        The file cannot be read, is malformed (all faults, each with its JSON path), has a cycle, or
        its times are too long for its memory to be told apart in bytes.
    """
    file = _read(path)
    costs = {(src, cost) for src, _, cost in file.edges}
    total_ns = sum(cost for _, cost in sorted(costs)) * NS_PER_MS
    quantum_ns = power_of_ten(total_ns / max(1e-9, TENSOR_SHARE * file.accelerator_bytes))
    if quantum_ns > _MAX_QUANTUM_NS:
        raise GraphError(
            f"{os.fspath(path)}: transfers of {total_ns:.0f} ns in all cannot be expressed within "
            f"{TENSOR_SHARE:.1%} of {file.accelerator_bytes:.0f} bytes; "
            f"give a larger maxSizePerFPGA"
        )
    cluster = _cluster(file, quantum_ns, is_steady)
    graph = _graph(file, quantum_ns, Path(path).stem, cluster)
    table = _costs(file, graph, cluster)
    error = max((abs(_error_ns(cost, quantum_ns)) for _, cost in costs), default=0.0)
    return PublishedInstance(graph, cluster, table, round(error))


def _read(path: str | os.PathLike[str]) -> _File:
    file, faults = read_import(path, _Format)
    if file.num_accelerators + file.num_cpus == 0:
        faults.add((), "there is neither an accelerator nor a CPU")
    check_ids(file.nodes, "nodes", faults)
    nodes = {node.id: node for node in file.nodes}
    if not all(node.is_supported for node in file.nodes) and not file.num_cpus:
        faults.add(("maxCPUs",), "there is no CPU for the nodes that accelerators do not support")
    check_ends(file.edges, ("sourceId", "destId"), nodes, faults)
    edges: dict[tuple[int, int], float] = {}
    for index, edge in enumerate(file.edges):
        if (edge.src, edge.dst) in edges:
            faults.add(("edges", index), f"the edge from {edge.src} to {edge.dst} occurs twice")
        edges[edge.src, edge.dst] = edge.cost
    faults.check()
    return _File(
        file.accelerator_bytes,
        file.num_accelerators,
        file.num_cpus,
        nodes,
        [(src, dst, cost) for (src, dst), cost in edges.items()],
    )


def _cluster(file: _File, quantum_ns: int, is_steady: bool) -> Cluster:
    count = file.num_accelerators
    host = count
    memories = [Memory(f"acc{i}.memory", max(1, int(file.accelerator_bytes))) for i in range(count)]
    memories.append(Memory("host", _HOST_BYTES))
    engines = 0 if is_steady else None
    devices = [
        Device(f"acc{i}", "ext_dev", "ext_dev", i, i, copy_engines=engines) for i in range(count)
    ]
    devices += [Device(f"cpu{i}", "cpu", "llvm", 0, host, (i,)) for i in range(file.num_cpus)]
    bandwidth = 10**9 // quantum_ns
    links = []
    for src in range(count):
        links.append(Link(f"acc{src}-host", src, host, bandwidth, 0, f"acc{src}.out"))
        links.append(Link(f"host-acc{src}", host, src, bandwidth, 0, f"acc{src}.in"))
        for dst in range(count):
            if src != dst and not is_steady:
                name = f"acc{src}-acc{dst}"
                links.append(Link(name, src, dst, bandwidth // 2, 0, f"acc{src}.out"))
    congestion = "none" if is_steady else "channel"
    return Cluster(
        "accelerators", tuple(memories), tuple(devices), tuple(links), None, congestion=congestion
    )


def _graph(file: _File, quantum_ns: int, name: str, cluster: Cluster) -> TaskGraph:
    builder = TaskGraphBuilder(name)
    cpus = tuple(device.name for device in cluster.devices if device.kind == "cpu")
    members = Counter(node.color for node in file.nodes.values())
    names = {node: f"{value.name}.{node}" for node, value in file.nodes.items()}
    # One tensor for each producer and cost.
    tensors: dict[tuple[int, float], str] = {}
    reads: dict[int, list[str]] = {node: [] for node in file.nodes}
    for src, dst, cost in file.edges:
        if (src, cost) not in tensors:
            num_bytes = round(cost * NS_PER_MS / quantum_ns)
            tensors[src, cost] = builder.add_tensor(names[src], num_bytes=num_bytes)
        reads[dst].append(tensors[src, cost])
    producers = {src for src, _ in tensors}
    outputs = []
    for node, value in file.nodes.items():
        task = Task(
            names[node],
            "op",
            weight_bytes=round(value.size),
            devices=None if value.is_supported else cpus,
            together=f"color{value.color}"
            if value.color is not UNSET and members[value.color] > 1
            else None,
        )
        builder.add_task(task, reads[node])
        if node not in producers:
            outputs.append(builder.add_tensor(names[node], num_bytes=0))
    return builder.finalize(outputs)


def _costs(file: _File, graph: TaskGraph, cluster: Cluster) -> CostTable:
    by_name = {f"{value.name}.{node}": value for node, value in file.nodes.items()}
    unsupported = Cost.unsupported("accelerators do not support it")
    rows = []
    for task in graph.tasks:
        node = by_name[task.name]
        on_cpu = Cost.given(round(node.cpu_ms * NS_PER_MS))
        on_accelerator = unsupported
        if node.is_supported:
            on_accelerator = Cost.given(round(node.accelerator_ms * NS_PER_MS))
        rows.append(
            tuple(on_cpu if device.kind == "cpu" else on_accelerator for device in cluster.devices)
        )
    return table_from_rows(graph, cluster, tuple(rows))


def _error_ns(cost_ms: float, quantum_ns: int) -> float:
    return round(cost_ms * NS_PER_MS / quantum_ns) * quantum_ns - cost_ms * NS_PER_MS
