"""Run times that came with a graph -> a cost table."""

from __future__ import annotations

from typing import cast

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.files.graph_file import Times
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import (
    Cost,
    CostTable,
    Detail,
    TableBuilder,
    of_several_devices,
    pinned_elsewhere,
)
from heteroplace.model.graph import TaskGraph
from heteroplace.terminal import listed

_SAID_IMPOSSIBLE = Cost.unsupported("the given times say so")


def costs_from_times(
    graph: TaskGraph, cluster: Cluster, times: Times, *, may_lack: bool = False
) -> CostTable:
    """Return the cost table of run times given by task name and device name.

    `times` may hold devices that the cluster has not; they are left out. With `may_lack` a time
    that is not there is unknown.

    Raises
    ------
    MissingCostError
        A task lacks the time of a device that it may run on; null in a file says that the device
        cannot run it.
    CostMismatchError
        `times` names a task that the graph has not.
    """
    unknown = sorted(set(times) - {task.name for task in graph.tasks})
    if unknown:
        raise CostMismatchError(
            f"times are given for tasks that graph {graph.name!r} has not: {listed(unknown)}"
        )
    names = [device.name for device in cluster.devices]
    builder = TableBuilder(graph.identities, cluster.identities)
    flat = _plain_times(graph, names, times)
    if flat is not None:
        builder.add_times(flat, Detail("given"))
        return builder.finalize()
    missing: list[str] = []
    for task in graph.tasks:
        row = times.get(task.name, {})
        for name in names:
            if collective_kind(task.op) is not None:
                builder.add(of_several_devices())
            elif task.devices is not None and name not in task.devices:
                builder.add(pinned_elsewhere(task))
            elif name not in row:
                missing.append(f"task {task.name!r} on {name!r}")
                builder.add(Cost.unknown())
            else:
                time = row[name]
                builder.add(_SAID_IMPOSSIBLE if time is None else Cost.given(time))
    if missing and not may_lack:
        raise _missing_times(graph, times, missing)
    return builder.finalize()


def _plain_times(graph: TaskGraph, names: list[str], times: Times) -> list[int] | None:
    """The times as [num_tasks * num_devices] if every task has one for every device, else None."""
    flat: list[int | None] = []
    try:
        for task in graph.tasks:
            if task.devices is not None:
                return None
            row = times[task.name]
            flat += [row[name] for name in names]
    except KeyError:
        return None
    return None if None in flat else cast("list[int]", flat)


def _missing_times(graph: TaskGraph, times: Times, missing: list[str]) -> MissingCostError:
    given = sorted({device for row in times.values() for device in row})
    return MissingCostError(
        f"graph {graph.name!r} gives no time for {listed(missing)}; "
        f"it gives times for the devices: {', '.join(given) or 'none'}. Add the times, or "
        f"null where a device cannot run a task"
    )
