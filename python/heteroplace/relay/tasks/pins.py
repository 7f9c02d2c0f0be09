"""What a user demands of devices -> the task graph whose tasks may be nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch

from heteroplace.errors import LoweringError, SolverError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import Task, TaskGraph


def with_pins(
    graph: TaskGraph, cluster: Cluster, pin: Mapping[str, str], exclude: Sequence[str]
) -> TaskGraph:
    """Return the graph with the devices of its tasks restricted, as far as they are not yet.

    Parameters
    ----------
    cluster
        Where the graph will be placed.
    pin
        Pattern (`fnmatch`) of task names, ops or layers of the imported model -> name of the
        device that must run them; of several that match, the last one holds.
    exclude
        Names of devices that no task may use.

    Raises
    ------
    ClusterError
        There is no such device.
    SolverError
        A pattern matches nothing, or what is asked for excludes itself.
    LoweringError
        A task that the module has on one device is asked for on others.
    """
    if isinstance(exclude, str):
        raise SolverError(f"exclude takes a list of names: exclude=[{exclude!r}]")
    for name in (*pin.values(), *exclude):
        cluster.device_id(name)  # raises ClusterError, which lists the names there are
    for pattern, name in pin.items():
        if name in exclude:
            raise SolverError(f"pin: {pattern!r} goes to {name!r}, which is excluded; drop one")
    allowed = tuple(d.name for d in cluster.devices if d.name not in exclude)
    if not allowed:
        raise SolverError("every device is excluded; leave at least one")
    matched: set[str] = set()
    tasks, barred = [], []
    for task in graph.tasks:
        devices = allowed if exclude else None
        for pattern, device in pin.items():
            if any(fnmatch(name, pattern) for name in _names(task)):
                matched.add(pattern)
                devices = (device,)
        if task.devices is not None:
            if devices is not None and not set(task.devices) <= set(devices):
                barred.append(f"{task.name} ({task.op}) on {task.devices[0]!r}, not {devices}")
            devices = task.devices
        tasks.append(replace(task, devices=devices))
    unmatched = [pattern for pattern in pin if pattern not in matched]
    if unmatched:
        names = ", ".join(task.name for task in graph.tasks[:8])
        raise SolverError(
            f"pin: no task matches {', '.join(unmatched)}; tasks are called like: {names}"
        )
    if barred:
        raise LoweringError(
            f"the module is annotated against pin or exclude: {'; '.join(barred)}; change the "
            f"options or the annotations"
        )
    return replace(graph, tasks=tuple(tasks))


def _names(task: Task) -> list[str]:
    """All names that a pin may mean: the task's, its ops', and those of the layers inside."""
    layers = [member.rpartition(":")[0] for member in task.members]
    return [task.name, *task.op.split("+"), *filter(None, layers)]
