"""Cost tables as JSON, and run times that came with a graph -> a table.

A file names tasks and devices, and holds the digests of the graph and the cluster it was made for.
Costs of larger batches stand in the optional field `batch_costs`, by the number of items. Version 1
knew one kind of predicted time, "estimated", which is read as "roofline".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar, cast

from msgspec import Meta, Struct, field

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.files.fields import Count, Json, Number, SchemaLink, Text, about, version
from heteroplace.files.graph import Times
from heteroplace.files.reader import Faults, JsonPath, read_json, read_struct, write_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import (
    SOURCES_WITH_TIME,
    SOURCES_WITHOUT_TIME,
    Cost,
    CostTable,
    Detail,
    Rows,
    TableBuilder,
    check_digests,
    pinned_elsewhere,
    spread_error,
    table_from_rows,
)
from heteroplace.model.graph import TaskGraph

SCHEMA_VERSION = 2
OLDEST_VERSION = 1
_SOURCES = {
    1: ("measured", "estimated", "given", *SOURCES_WITHOUT_TIME),
    2: (*SOURCES_WITH_TIME, *SOURCES_WITHOUT_TIME),
}
"""What `source` may be, by version of the file."""
_TIMED: Json = {"properties": {"source": {"enum": list(SOURCES_WITH_TIME)}}}
_NS_IF_TIMED: Json = {
    "if": _TIMED,
    "then": {"required": ["ns"]},
    "else": {"not": {"required": ["ns"]}},
}
_BATCH = "^([2-9]|[1-9][0-9]{1,8})$"


class CostEntry(Struct, forbid_unknown_fields=True, kw_only=True):
    """The cost of a task on a device."""

    source: Annotated[Text, Meta(extra_json_schema={"enum": list(_SOURCES[2])})]
    ns: Annotated[Count, about("Run time; present unless unsupported or unknown.")] | None = None
    spread_ns: Annotated[Count, about("Half of the interquartile range.")] = 0
    reason: Text = ""
    error: (
        Annotated[
            Number, about("Relative error to expect; that of a measured time is spread over time.")
        ]
        | None
    ) = None


Entries = dict[str, dict[str, Annotated[CostEntry, Meta(extra_json_schema=_NS_IF_TIMED)]]]
"""By task name and device name."""


class CostsFile(Struct, forbid_unknown_fields=True, kw_only=True):
    """The cost of every task on every device."""

    schema: SchemaLink = field(default="", name="$schema")
    schema_version: Annotated[Literal[1, 2], version(SCHEMA_VERSION, OLDEST_VERSION)]
    graph: Annotated[Text, about("Name of the graph; for people.")] = ""
    cluster: Annotated[Text, about("Name of the cluster; for people.")] = ""
    graph_digest: Text
    cluster_digest: Text
    costs: Annotated[Entries, about("Of one item; by task name and device name.")]
    batch_costs: Annotated[
        dict[str, Entries],
        about("Of several items run together; by their number, which is above 1."),
        Meta(extra_json_schema={"propertyNames": {"pattern": _BATCH}}),
    ] = {}


T = TypeVar("T")
_MAX_LISTED = 10
_SAID_IMPOSSIBLE = Cost.unsupported("the given times say so")


def costs_from_times(graph: TaskGraph, cluster: Cluster, times: Times) -> CostTable:
    """Return the cost table of run times given by task name and device name.

    `times` may hold devices that the cluster has not; they are left out.

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
            f"times are given for tasks that graph {graph.name!r} has not: "
            f"{', '.join(unknown[:_MAX_LISTED])}"
        )
    names = [device.name for device in cluster.devices]
    builder = TableBuilder(graph.digest(), cluster)
    flat = _plain_times(graph, names, times)
    if flat is not None:
        builder.add_times(flat, Detail("given"))
        return builder.finalize()
    missing: list[str] = []
    for task in graph.tasks:
        row = times.get(task.name, {})
        for name in names:
            if task.devices is not None and name not in task.devices:
                builder.add(pinned_elsewhere(task))
            elif name not in row:
                missing.append(f"task {task.name!r} on {name!r}")
            else:
                time = row[name]
                builder.add(_SAID_IMPOSSIBLE if time is None else Cost.given(time))
    if missing:
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
    more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
    given = sorted({device for row in times.values() for device in row})
    return MissingCostError(
        f"graph {graph.name!r} gives no time for {', '.join(missing[:_MAX_LISTED])}{more}; "
        f"it gives times for the devices: {', '.join(given) or 'none'}. Add the times, or "
        f"null where a device cannot run a task"
    )


def save_costs(
    table: CostTable, graph: TaskGraph, cluster: Cluster, path: str | os.PathLike[str]
) -> None:
    """Write `table` to `path`; atomic.

    Raises
    ------
    CostMismatchError
        The table belongs to another graph or cluster.
    """
    table.check(graph, cluster)
    write_json(costs_to_json(table, graph, cluster), path)


def load_costs(path: str | os.PathLike[str], graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return the cost table in a file.

    Raises
    ------
    CostMismatchError
        The file cannot be read, belongs to another graph or cluster, or has faults (all are named,
        with their JSON paths).
    """
    return costs_from_json(read_json(path, CostMismatchError), graph, cluster, os.fspath(path))


def costs_to_json(table: CostTable, graph: TaskGraph, cluster: Cluster) -> dict[str, object]:
    """Return `table` as a value for `json.dump`."""
    value: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "graph": graph.name,
        "graph_digest": table.graph_digest,
        "cluster": cluster.name,
        "cluster_digest": table.cluster_digest,
        "costs": _rows_to_json(table.rows, graph, cluster),
    }
    if len(table.batches) > 1:
        value["batch_costs"] = {
            str(batch): _rows_to_json(table.rows_of(batch), graph, cluster)
            for batch in table.batches[1:]
        }
    return value


def costs_from_json(
    value: object, graph: TaskGraph, cluster: Cluster, source: str = "costs"
) -> CostTable:
    """Return the table that a parsed JSON value describes.

    Parameters
    ----------
    value
        What `json.load` returned.
    graph, cluster
        What the costs must be for.
    source
        What to call the value in messages.

    Raises
    ------
    CostMismatchError
        As `load_costs`.
    """
    file, faults = read_struct(value, CostsFile, source, CostMismatchError)
    if not (file.graph_digest and file.cluster_digest):
        faults.check()
    # Before the names are read: those of another graph would only give a heap of unknown ones.
    check_digests(graph, cluster, file.graph_digest, file.cluster_digest)
    tables: dict[int, Rows] = {}
    devices = {device.name: index for index, device in enumerate(cluster.devices)}
    tasks = {task.name: index for index, task in enumerate(graph.tasks)}
    for batch, path, entries in _batches(file, faults):
        _note_names(faults, path, entries, tasks)
        rows = []
        for task in graph.tasks:
            row = entries.get(task.name, {})
            if task.name in entries:
                _note_names(faults, (*path, task.name), row, devices)
            costs = (
                _cost(row[name], (*path, task.name, name), file, faults)
                if name in row
                else Cost.unknown()
                for name in devices
            )
            rows.append(tuple(costs))
        tables[batch] = tuple(rows)
    faults.check()
    return table_from_rows(file.graph_digest, cluster, tables.pop(1), tables)


def named_costs_from_json(value: object, source: str = "costs") -> list[NamedCost]:
    """Return all cells of a cost file, for printing: the graph and the cluster are not needed.

    Raises
    ------
    CostMismatchError
        The file has faults: all are named, with their JSON paths.
    """
    file, faults = read_struct(value, CostsFile, source, CostMismatchError)
    cells = [
        NamedCost(task, device, batch, _cost(entry, (*path, task, device), file, faults))
        for batch, path, entries in _batches(file, faults)
        for task, row in entries.items()
        for device, entry in row.items()
    ]
    faults.check()
    return cells


@dataclass(frozen=True)
class NamedCost:
    """One cell of a cost file."""

    task: str
    device: str
    batch: int
    cost: Cost


def _batches(file: CostsFile, faults: Faults) -> list[tuple[int, JsonPath, Entries]]:
    """The entries of each number of items, ascending; the first is 1."""
    found: list[tuple[int, JsonPath, Entries]] = [(1, ("costs",), file.costs)]
    for key, entries in file.batch_costs.items():
        path = ("batch_costs", key)
        if re.fullmatch(_BATCH, key):
            found.append((int(key), path, entries))
        else:
            faults.add(path, "expected a number of items above 1 as the key")
    return sorted(found, key=lambda batch: batch[0])


def _note_names(
    faults: Faults, path: JsonPath, entries: dict[str, T], names: dict[str, int]
) -> None:
    """Note names that have no entry, and entries of no name.

    Parameters
    ----------
    faults
        Takes them.
    path
        Of the object whose keys are the names.
    entries
        That object.
    names
        Those that it should have, with their ids.
    """
    if entries.keys() == names.keys():
        return
    for name in names:
        if name not in entries:
            faults.missing(path, name)
    faults.unknown(path, entries, names)


def _rows_to_json(rows: Rows, graph: TaskGraph, cluster: Cluster) -> dict[str, object]:
    costs: dict[str, object] = {}
    for task, row in zip(graph.tasks, rows, strict=True):
        costs[task.name] = {
            device.name: _cost_to_json(cost)
            for device, cost in zip(cluster.devices, row, strict=True)
        }
    return costs


def _cost_to_json(cost: Cost) -> dict[str, object]:
    value: dict[str, object] = {"source": cost.source}
    if cost.ns is not None:
        value["ns"] = cost.ns
    if cost.spread_ns:
        value["spread_ns"] = cost.spread_ns
    if cost.reason:
        value["reason"] = cost.reason
    # A measured time's error follows from its spread.
    if cost.error is not None and cost.source != "measured":
        value["error"] = cost.error
    return value


def _cost(entry: CostEntry, path: JsonPath, file: CostsFile, faults: Faults) -> Cost:
    """The cost of an entry.

    Parameters
    ----------
    entry
        As it is in the file.
    path
        Of the entry.
    file
        Of which version decides what sources there are.
    faults
        Takes what is wrong; the cost is a stand-in then.
    """
    sources = _SOURCES[file.schema_version]
    if not entry.source:  # Missing, or no text; said already.
        return Cost.unknown()
    if entry.source not in sources:
        faults.expected((*path, "source"), f"one of {', '.join(sources)}", entry.source)
        return Cost.unknown()
    has_time = entry.source not in SOURCES_WITHOUT_TIME
    if has_time and entry.ns is None:
        faults.missing(path, "ns")
    if not has_time and entry.ns is not None:
        faults.add((*path, "ns"), f"a cost that is {entry.source} has no time")
    error = entry.error
    if entry.source == "measured" and entry.ns is not None:
        error = spread_error(entry.ns, entry.spread_ns)
    source = "roofline" if entry.source == "estimated" else entry.source
    return Cost(entry.ns, source, entry.spread_ns, entry.reason, error)
