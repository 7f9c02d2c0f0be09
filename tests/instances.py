"""Worked instances with known optima. Units are shrunk: 1 s becomes 1 ns, 10 MB become 10 B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.cost import Cost, CostTable, build_table
from heteroplace.model.graph import Task, TaskGraph, TaskGraphBuilder
from heteroplace.solve.problem import Problem
from tests.strategies import AMPLE, Instance

BYTE_PER_NS = 10**9


def gpus(
    bandwidths: dict[tuple[int, int], int],
    num_devices: int,
    capacity: int = AMPLE,
    host: int | None = None,
) -> Cluster:
    """Devices with a memory each; bandwidths in bytes per ns for (src, dst)."""
    return Cluster(
        "gpus",
        tuple(Memory(f"m{i}", capacity) for i in range(num_devices)),
        tuple(Device(f"gpu{i}", "cuda", "", i, i) for i in range(num_devices)),
        tuple(
            Link(f"{src}-{dst}", src, dst, width * BYTE_PER_NS, 0, f"{src}-{dst}")
            for (src, dst), width in bandwidths.items()
        ),
        host,
    )


def cpu(capacity: int = AMPLE, host: int | None = 0) -> Cluster:
    """Two cores as two devices, and both together as a third one, in one memory."""
    cores = {"cpu.0": (0,), "cpu.1": (1,), "cpu.all": (0, 1)}
    devices = tuple(Device(name, "cpu", "", 0, 0, ids) for name, ids in cores.items())
    return Cluster("cpu", (Memory("ram", capacity),), devices, (), host)


def instance(
    edges: Sequence[tuple[str, str]],
    run_ns: dict[str, tuple[int | None, ...]],
    cluster: Cluster,
    num_bytes: int = 10,
    weight_bytes: int = 0,
    tensor_bytes: Mapping[str, int] | None = None,
) -> Instance:
    """Tasks with one output each; every sink's output is returned; costs are given.

    An output has `num_bytes`, or what `tensor_bytes` has for its task.
    """
    builder = TaskGraphBuilder("worked")
    for name in run_ns:
        reads = [f"{src}.0" for src, dst in edges if dst == name]
        builder.add_task(Task(name, "op", weight_bytes=weight_bytes), reads)
        builder.add_tensor(name, num_bytes=(tensor_bytes or {}).get(name, num_bytes))
    sources = {src for src, _ in edges}
    graph = builder.finalize([f"{name}.0" for name in run_ns if name not in sources])
    return Instance(graph, cluster, given_costs(graph, cluster, run_ns))


def given_costs(
    graph: TaskGraph, cluster: Cluster, run_ns: Mapping[str, Sequence[int | None]]
) -> CostTable:
    """A table of the times of each task, by its name, on each device; None: it cannot run there."""

    def cost(task: int, device: int) -> Cost:
        time = run_ns[graph.tasks[task].name][device]
        return Cost.unsupported("forced elsewhere") if time is None else Cost.given(time)

    return build_table(graph, cluster, cost)


def problem_of(case: Instance) -> Problem:
    """The instance as solvers take it."""
    return Problem(case.graph, case.cluster, case.costs)


def diamond(capacity: int = AMPLE, weight_bytes: int = 0) -> Instance:
    """a -> b, c -> d on two devices; optimum 10, all on the first 12."""
    run_ns: dict[str, tuple[int | None, ...]] = {
        "a": (2, 4),
        "b": (4, 5),
        "c": (4, 3),
        "d": (2, 4),
    }
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    cluster = gpus({(0, 1): 10, (1, 0): 5}, 2, capacity)
    return instance(edges, run_ns, cluster, weight_bytes=weight_bytes)
