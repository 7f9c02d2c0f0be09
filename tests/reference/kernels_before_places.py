"""A graph with kernel variants -> the graph whose kernels are chosen before the places.

Oracles for plans that choose both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import base_of, maker_of, twin_name


def with_kernels_first(graph: TaskGraph, cluster: Cluster, costs: CostTable | None) -> TaskGraph:
    """Return a graph whose tasks have the kernels of one maker each, the same on all devices.

    Parameters
    ----------
    cluster
        With twins (`with_implementations`).
    costs
        Its times on the device of most cores decide, the first such; None: all kernels are ours.
    """
    bases = [i for i in range(len(cluster.devices)) if base_of(cluster, i) is None]
    names = [cluster.devices[index].name for index in bases]
    most = max(range(len(bases)), key=lambda place: len(cluster.devices[bases[place]].cores))
    makers = list(dict.fromkeys(maker_of(device.name) for device in cluster.devices))
    tasks = []
    for index, task in enumerate(graph.tasks):
        if task.devices is None:
            tasks.append(task)
            continue
        chosen = names
        if costs is not None:
            choices = [_with_kernels_of(maker, names, task.devices) for maker in makers]
            times = [costs.cost(index, cluster.device_id(each[most])).ns for each in choices]
            timed = [(ns, place) for place, ns in enumerate(times) if ns is not None]
            chosen = choices[min(timed)[1]] if timed else names
        tasks.append(replace(task, devices=tuple(name for name in task.devices if name in chosen)))
    return replace(graph, tasks=tuple(tasks))


def with_fastest_first(graph: TaskGraph, cluster: Cluster, costs: CostTable) -> TaskGraph:
    """Return a graph whose tasks may run where their fastest kernels are, with as many cores.

    Parameters
    ----------
    cluster
        With twins (`with_implementations`).
    costs
        Which maker and number of cores is fastest for a task alone; of equal ones the first.
    """
    kinds = {device.name: (maker_of(device.name), len(device.cores)) for device in cluster.devices}
    tasks = []
    for index, task in enumerate(graph.tasks):
        allowed = list(kinds) if task.devices is None else task.devices
        times = {name: costs.cost(index, cluster.device_id(name)).ns for name in allowed}
        timed = {name: ns for name, ns in times.items() if ns is not None}
        if timed:
            fastest = kinds[min(timed, key=timed.__getitem__)]
            task = replace(task, devices=tuple(n for n in allowed if kinds[n] == fastest))
        tasks.append(task)
    return replace(graph, tasks=tuple(tasks))


def _with_kernels_of(maker: str | None, names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """For each device that is no twin the one with a maker's kernels; itself where they are equal,
    or where the maker is None."""
    twins = [name if maker is None else twin_name(name, maker) for name in names]
    return [t if t in allowed else name for name, t in zip(names, twins, strict=True)]
