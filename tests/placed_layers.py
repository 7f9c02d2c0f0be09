"""Solutions of chains of tasks: one task for each layer of an imagined model, on a named device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heteroplace.files.cluster_file import load_cluster
from heteroplace.model.graph import Task, TaskGraphBuilder
from heteroplace.model.solution import Solution
from heteroplace.solve import SolveOptions, solve_network
from heteroplace.solve.problem import Problem
from tests.instances import given_costs


def chain_solution(
    layers: Mapping[str, str],
    weight_bytes: Mapping[str, int] | None = None,
    *,
    is_pinned: bool = True,
    has_two_cpus: bool = False,
) -> Solution:
    """A chain of tasks, of which each holds one layer, and runs on its device.

    A layer ends in "#2" where it is the second task of the layer before that sign. `is_pinned`: no
    other device is allowed; otherwise a solver chooses one. `has_two_cpus`: a device "cpu.1" is
    added to those of the cluster cpu-two-gpus.
    """
    cluster = load_cluster("cpu-two-gpus")
    if has_two_cpus:
        second = replace(cluster.devices[0], name="cpu.1")
        cluster = replace(cluster, devices=(*cluster.devices, second))
    builder = TaskGraphBuilder("chain")
    for number, (layer, device) in enumerate(layers.items()):
        name, size = f"t{number}", (weight_bytes or {}).get(layer, 0)
        task = Task(name, "op", (f"{layer.partition('#')[0]}:op",), weight_bytes=size)
        reads = [f"t{number - 1}.0"] if number else []
        builder.add_task(replace(task, devices=(device,) if is_pinned else None), reads)
        builder.add_tensor(name, num_bytes=4)
    graph = builder.finalize([f"t{len(layers) - 1}.0"])
    times = {task.name: (10,) * len(cluster.devices) for task in graph.tasks}
    costs = given_costs(graph, cluster, times)
    return solve_network(Problem(graph, cluster, costs), SolveOptions(), solver="heft")
