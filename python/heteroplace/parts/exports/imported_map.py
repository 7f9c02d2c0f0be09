"""A device map of accelerate and a solution of the same network -> a solution on its devices.

The order of tasks, and the CPU device where the cluster has several, are not in a device map: a
solver chooses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.demands import layers_of
from heteroplace.model.graph import Task
from heteroplace.model.solution import Solution
from heteroplace.parts.exports.module_names import modules_of_graph
from heteroplace.parts.exports.placed_layers import gpu_index, shown_names
from heteroplace.solve import Problem, SolveOptions, solve_network

_TIME_LIMIT_S = 5.0


def import_device_map(solution: Solution, places: Mapping[str, object]) -> Solution:
    """Return the network of a solution, placed as a device map says.

    Parameters
    ----------
    solution
        Any placement of the network: its graph, cluster and costs count.
    places
        Names of modules -> "cpu" or the number of a GPU. Of several names that are above a module
        the longest counts. "" is the whole model.

    Raises
    ------
    PlanError
        The network has routers, the map has no place for a layer, or the cluster lacks a device.
    InfeasibleError
        A device cannot run a task, or lacks the memory.
    """
    graph, cluster = solution.graph, solution.cluster
    if graph.routers:
        raise PlanError(f"{graph.name!r} has routers, and a device map cannot say where they go")
    devices = {name: _devices(cluster, name, place) for name, place in places.items()}
    modules = modules_of_graph(graph, None)
    keys = {layer: _key(module, devices) for layer, module in modules.items()}
    lost = [modules[layer] for layer, key in keys.items() if key is None and modules[layer]]
    if lost or not modules:
        raise PlanError(
            f"the device map has no place for {shown_names(lost) or 'any task'}; its names are "
            f"{shown_names(list(devices)) or 'none'}. Give names of modules of this network, or "
            f'"" for the rest'
        )
    tasks = []
    for task in graph.tasks:
        key = next((keys[layer] for layer in layers_of(task) if keys[layer] is not None), None)
        tasks.append(task if key is None else _restricted(task, devices[key]))
    objective = "latency" if solution.item_ns is None else "throughput"
    options = SolveOptions(objective=objective, time_limit_s=_TIME_LIMIT_S)
    problem = Problem(replace(graph, tasks=tuple(tasks)), cluster, solution.costs)
    return solve_network(problem, options)


def _devices(cluster: Cluster, name: str, place: object) -> tuple[str, ...]:
    """Names of the devices that a place of a map means."""
    is_number = isinstance(place, int) and not isinstance(place, bool)
    index = place if is_number else None
    names = tuple(each.name for each in cluster.devices if gpu_index(each) == index)
    if not names or not (is_number or place == "cpu"):
        indices = sorted(
            {index for each in cluster.devices if (index := gpu_index(each)) is not None}
        )
        raise PlanError(
            f"the device map puts {name!r} on {place!r}; expected "
            f"{', '.join(['cpu', *map(str, indices)])}, the devices of cluster {cluster.name!r}"
        )
    return names


def _key(module: str, devices: Mapping[str, object]) -> str | None:
    """The longest name of a map that is a module or above it."""
    steps = module.split(".")
    paths = [".".join(steps[:length]) for length in range(len(steps), 0, -1)]
    return next((path for path in (*paths, "") if path in devices), None)


def _restricted(task: Task, names: tuple[str, ...]) -> Task:
    allowed = [name for name in names if task.devices is None or name in task.devices]
    return replace(task, devices=tuple(allowed) or names)
