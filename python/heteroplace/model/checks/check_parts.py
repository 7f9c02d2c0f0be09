"""Rules of plans that need nothing of what came before: ids, ways of transfers, groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Copy, Load, Run, Step


def unknown_ids(graph: TaskGraph, cluster: Cluster, step: Step) -> list[tuple[str, int, int]]:
    """Return (kind, id, how many there are) of each id of a step, but for its guard's, that does
    not exist."""
    num_tasks, num_devices = len(graph.tasks), len(cluster.devices)
    count = len(cluster.memories)
    ids: tuple[tuple[str, int, int], ...]
    if isinstance(step, Run):
        ids = (("task", step.task, num_tasks), ("device", step.device, num_devices))
    elif isinstance(step, Copy):
        ids = (
            ("tensor", step.tensor, len(graph.tensors)),
            ("memory", step.src, count),
            ("memory", step.dst, count),
        )
    elif isinstance(step, Load):
        tasks = (("task", task, num_tasks) for task in step.tasks)
        ids = (*tasks, ("memory", step.src, count), ("memory", step.dst, count))
    else:
        devices = (("device", device, num_devices) for device in step.devices)
        ids = (("task", step.task, num_tasks), *devices)
    return [one for one in ids if not 0 <= one[1] < one[2]]


def route_faults(cluster: Cluster, step: Copy | Load) -> list[str]:
    """Return what is wrong with the way of a copy or a load; [] if it leads from src to dst."""
    links = cluster.links
    unknown = [link for link in step.route if link not in range(len(links))]
    if unknown:
        return [f"its route has link ids that do not exist: {unknown}"]
    memory = step.src
    for link in step.route:
        if links[link].src != memory:
            name = cluster.memories[memory].name
            return [f"its route breaks at link {links[link].name!r}, not from memory {name!r}"]
        memory = links[link].dst
    if memory != step.dst or not step.route:
        name = cluster.memories[memory].name
        return [f"its route ends in memory {name!r}"]
    return []


def group_faults(
    graph: TaskGraph,
    cluster: Cluster,
    device_of: Mapping[tuple[int, int], int],
    name_items: Callable[[Sequence[int]], str],
) -> list[str]:
    """Return which tasks of one colocation group do not share a device, item by item.

    Parameters
    ----------
    device_of
        By (task, item).
    name_items
        What to say of some items behind a fault.
    """
    groups: dict[tuple[str, int], dict[int, str]] = {}
    for (task_id, item), device in sorted(device_of.items()):
        task = graph.tasks[task_id]
        if task.together is not None:
            groups.setdefault((task.together, item), {}).setdefault(device, task.name)
    faults = []
    for (group, item), tasks in groups.items():
        if len(tasks) > 1:
            where = ", ".join(
                f"{name!r} @{cluster.devices[device].name}" for device, name in tasks.items()
            )
            faults.append(
                f"tasks of colocation group {group!r} must share a device{name_items([item])}: "
                f"{where}"
            )
    return faults
