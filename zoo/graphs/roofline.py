"""Costs of generated graphs: a roofline with one efficiency per class of op.

Time = max(flops / (peak flops x e), bytes / (memory bandwidth x e)) + launch. Bytes are weights,
inputs and outputs, each moved once. Unlike `costs.roofline.estimate_costs`, which assumes peak
speeds, each op has a class with the share of both peaks that kernels of that class reach. Devices
differ in the ratio of the two peaks, so the ratios of their times differ from class to class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import Cost, CostTable, table_from_rows
from heteroplace.model.graph import TaskGraph


@dataclass(frozen=True)
class Efficiency:
    """Parts of the two peaks that ops of one class reach."""

    compute_ratio: float
    memory_ratio: float


MATMUL = Efficiency(0.75, 0.75)
"""Large matrix products: three quarters of the peak, as vendors' libraries reach."""
BATCHED_MATMUL = Efficiency(0.5, 0.75)
"""Products inside attention heads: narrow, so less of the peak."""
MEMORY_BOUND = Efficiency(0.25, 0.8)
"""Element-wise ops, normalisations, transposes."""


def roofline_costs(
    graph: TaskGraph, cluster: Cluster, classes: Mapping[str, Efficiency]
) -> CostTable:
    """Return the estimated costs of all tasks on all devices.

    Parameters
    ----------
    classes
        Efficiency by `Task.op`.

    Raises
    ------
    MissingCostError
        An op has no class, or a device gives no peak speed or no bandwidth.
    """
    known: dict[tuple[int, ...], tuple[Cost, ...]] = {}
    table = []
    for row in roofline_ns(graph, cluster, classes):
        if row not in known:
            known[row] = tuple(Cost.roofline(ns, "assumed efficiencies") for ns in row)
        table.append(known[row])
    return table_from_rows(graph, cluster, tuple(table))


def roofline_ns(
    graph: TaskGraph, cluster: Cluster, classes: Mapping[str, Efficiency], batch: int = 1
) -> list[tuple[int, ...]]:
    """Return for each task its times in ns on all devices; weights are read once for a batch.

    Raises
    ------
    MissingCostError
        As `roofline_costs`.
    """
    unknown = sorted({task.op for task in graph.tasks} - set(classes))
    silent = [
        device.name
        for device in cluster.devices
        if device.flops_per_second is None or device.memory_bytes_per_second is None
    ]
    if unknown or silent:
        raise MissingCostError(
            f"graph {graph.name!r} on cluster {cluster.name!r}: ops without a class: "
            f"{', '.join(unknown) or 'none'}; devices without flops_per_second or "
            f"memory_bytes_per_second: {', '.join(silent) or 'none'}; give both"
        )
    moved = [task.weight_bytes for task in graph.tasks]
    for tensor in graph.tensors:
        if tensor.producer is not None:
            moved[tensor.producer] += batch * tensor.bytes
        for consumer in tensor.consumers:
            moved[consumer] += batch * tensor.bytes
    # Layers repeat, so there are few different rows however many tasks.
    rows: dict[tuple[str, int, int], tuple[int, ...]] = {}
    table = []
    for task, num_bytes in zip(graph.tasks, moved, strict=True):
        key = (task.op, task.flops, num_bytes)
        if key not in rows:
            efficiency, flops = classes[task.op], batch * task.flops
            rows[key] = tuple(
                _time_ns(device, efficiency, flops, num_bytes) for device in cluster.devices
            )
        table.append(rows[key])
    return table


def _time_ns(device: Device, efficiency: Efficiency, flops: int, num_bytes: int) -> int:
    assert device.flops_per_second is not None and device.memory_bytes_per_second is not None
    compute_s = flops / (device.flops_per_second * efficiency.compute_ratio)
    memory_s = num_bytes / (device.memory_bytes_per_second * efficiency.memory_ratio)
    return max(1, round(max(compute_s, memory_s) * 1e9)) + device.launch_ns
