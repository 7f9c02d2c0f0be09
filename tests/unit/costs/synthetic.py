"""Graphs of dense layers and element-wise ops, and devices that obey known laws."""

from __future__ import annotations

from heteroplace.costs.device_figures import figures_of, fill_device
from heteroplace.costs.prediction.op_regression import LinearCost
from heteroplace.costs.prediction.wave_scaling import scale_by_waves
from heteroplace.costs.roofline import device_speeds, roofline_ns
from heteroplace.costs.work import task_work
from heteroplace.model.cluster import Cluster, Device, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder

EFFICIENCY = {"nn.dense+add": 2.0, "nn.dense+add+nn.relu": 2.0, "add": 5.0}
"""Time over roofline on CPUs, by op."""
LINE = {
    "nn.dense+add": LinearCost(0.02, 0.1, 2000.0),
    "nn.dense+add+nn.relu": LinearCost(0.02, 0.1, 2000.0),
    "add": LinearCost(0.0, 0.3, 900.0),
}
"""Law of the device "npu", by op."""


def layers(widths: tuple[int, ...] = (64, 128, 256, 512, 96, 192, 320, 640)) -> TaskGraph:
    """A chain of dense layers (every other one with a relu), each followed by an addition."""
    builder = TaskGraphBuilder("layers")
    value = builder.add_input("x", (32, widths[0]), "float32")
    before = widths[0]
    for index, width in enumerate(widths):
        op = "nn.dense+add" if index % 2 else "nn.dense+add+nn.relu"
        flops, weights = 2 * 32 * before * width, 4 * before * width
        builder.add_task(Task(f"dense{index}", op, flops=flops, weight_bytes=weights), [value])
        value = builder.add_tensor(f"dense{index}", (32, width), "float32")
        builder.add_task(Task(f"add{index}", "add", flops=32 * width), [value])
        value = builder.add_tensor(f"add{index}", (32, width), "float32")
        before = width
    return builder.finalize([value])


def machine() -> Cluster:
    """Two unlike CPUs, two alike ones, three GPUs and an accelerator without known peaks."""
    return Cluster(
        "lab",
        tuple(Memory(f"ram{host}", 2**36) for host in range(7)),
        (
            Device("old", "cpu", "llvm -a", 0, 0, (0,), "h1", model="Core i7-6700K"),
            Device("new", "cpu", "llvm -b", 0, 1, (0,), "h2", model="EPYC 7763"),
            Device("twin.0", "cpu", "llvm -c", 0, 2, (0,), "h3", model="Xeon Gold 6132"),
            Device("twin.1", "cpu", "llvm -c", 0, 2, (1,), "h3", model="Xeon Gold 6132"),
            Device("t4", "cuda", "cuda -arch=sm_75", 0, 3, (), "h4", model="Tesla T4"),
            Device("v100", "cuda", "cuda -arch=sm_70", 0, 4, (), "h5", model="V100-SXM2"),
            Device("h200", "cuda", "cuda -arch=sm_90", 0, 5, (), "h6", model="NVIDIA H200"),
            Device("npu", "npu", "npu", 0, 6),
        ),
    )


def true_ns(graph: TaskGraph, cluster: Cluster, task: int, device_id: int, batch: int = 1) -> int:
    """CPUs: roofline times EFFICIENCY; GPUs: wave scaling from 3 x the T4's roofline; npu: LINE."""
    device, op = cluster.devices[device_id], graph.tasks[task].op
    work = task_work(graph, task, batch)
    if device.kind == "npu":
        return round(LINE[op].ns(work))
    if device.kind == "cpu":
        speeds = device_speeds(fill_device(device))
        assert speeds is not None
        return round(roofline_ns(work, speeds) * EFFICIENCY[op])
    t4 = cluster.devices[cluster.device_id("t4")]
    speeds, origin, destination = device_speeds(t4), figures_of(t4), figures_of(device)
    assert speeds is not None and origin is not None and destination is not None
    # In large units, so that rounding to nanoseconds hides nothing.
    return round(scale_by_waves(3000 * roofline_ns(work, speeds), origin, destination, work))


def measured_table(
    graph: TaskGraph, cluster: Cluster, unknown: set[tuple[str, str]], batches=(1,)
) -> CostTable:
    """The true costs, but for (task or "*", device or "*") pairs that nobody measured."""

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        names = graph.tasks[task].name, cluster.devices[device].name
        if {names, ("*", names[1]), (names[0], "*")} & unknown:
            return Cost.unknown()
        return Cost.measured(true_ns(graph, cluster, task, device, batch), 3)

    return build_table(graph, cluster, cost, batches)
