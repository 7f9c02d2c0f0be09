"""Estimate task costs from sizes and peak speeds (roofline), for devices that are not here."""

from __future__ import annotations

from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph


def estimate_costs(graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return max(flops / peak, bytes / bandwidth) + launch for every task and device.

    Bytes are weights, inputs and outputs, each moved once.

    Raises
    ------
    MissingCostError
        A device that some task may run on gives no peak speed or no memory bandwidth.
    """
    used = {index for ids in allowed_devices(graph, cluster) for index in ids}
    lacking = [
        device.name
        for index, device in enumerate(cluster.devices)
        if index in used and None in (device.flops_per_second, device.memory_bytes_per_second)
    ]
    if lacking:
        raise MissingCostError(
            f"cannot estimate costs on {', '.join(lacking)}: flops_per_second and "
            f"memory_bytes_per_second are needed; add them to cluster {cluster.name!r}"
        )

    def cost(task_id: int, device_id: int) -> Cost:
        task, device = graph.tasks[task_id], cluster.devices[device_id]
        touched = (*graph.task_inputs[task_id], *graph.task_outputs[task_id])
        moved = task.weight_bytes + sum(graph.tensors[tensor].bytes for tensor in touched)
        assert device.flops_per_second is not None and device.memory_bytes_per_second is not None
        compute_ns = -(-task.flops * 1_000_000_000 // device.flops_per_second)
        memory_ns = -(-moved * 1_000_000_000 // device.memory_bytes_per_second)
        return Cost.estimated(max(compute_ns, memory_ns) + device.launch_ns, "roofline")

    return build_table(graph, cluster, cost)
