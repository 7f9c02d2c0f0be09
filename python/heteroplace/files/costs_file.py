"""Cost tables as JSON.

A file names tasks and devices, and says of each what its costs depend on, so that it holds for
other graphs and clusters as far as these have the same tasks and devices. Costs of larger batches
stand in the optional field `batch_costs`, by the number of items. Versions 1 and 2 hold the digests
of the one graph and the one cluster that they are for, and are read for these only. Version 1 knew
one kind of predicted time, "estimated", which is read as "roofline".
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from heteroplace.errors import CostMismatchError
from heteroplace.files.faults import Faults, JsonPath
from heteroplace.files.fields.cost_fields import (
    SCHEMA_VERSION,
    SOURCES,
    ColumnEntry,
    CostEntry,
    CostsFile,
    Entries,
    RowEntry,
    collectives_of,
    collectives_to_json,
)
from heteroplace.files.fields.fields import or_none
from heteroplace.files.reader import read_json, read_struct, write_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import (
    SOURCES_WITHOUT_TIME,
    Cost,
    CostTable,
    Rows,
    TableBuilder,
    spread_error,
)
from heteroplace.model.cost_lookup import find_costs
from heteroplace.model.digests import digest_mismatches
from heteroplace.model.graph import TaskGraph
from heteroplace.model.identity import DeviceIdentity, TaskIdentity

T = TypeVar("T")
_MAX_LISTED = 10


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
    """Return what a file says of `graph` and `cluster`; see `find_costs`.

    Raises
    ------
    CostMismatchError
        The file cannot be read, knows none of the tasks, has faults (all are named, with their JSON
        paths), or is of an older version and for another graph or cluster.
    """
    return find_costs(load_table(path, graph, cluster), graph, cluster)


def load_table(path: str | os.PathLike[str], graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return the whole table in a file; what it is for may be another graph or cluster.

    Parameters
    ----------
    graph, cluster
        What a file of version 1 or 2 must be for; these do not say what their tasks are.

    Raises
    ------
    CostMismatchError
        As `load_costs`, but for the tasks.
    """
    value = read_json(path, CostMismatchError)
    return table_from_json(value, graph, cluster, os.fspath(path))


def costs_to_json(table: CostTable, graph: TaskGraph, cluster: Cluster) -> dict[str, object]:
    """Return `table` as a value for `json.dump`."""
    value: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "graph": graph.name,
        "cluster": cluster.name,
        "rows": {task.name: _entry(RowEntry, task) for task in table.tasks},
        "columns": {device.name: _entry(ColumnEntry, device) for device in table.devices},
        "costs": _rows_to_json(table.rows, graph, cluster),
    }
    if len(table.batches) > 1:
        value["batch_costs"] = {
            str(batch): _rows_to_json(table.rows_of(batch), graph, cluster)
            for batch in table.batches[1:]
        }
    if table.collectives is not None:
        value["collectives"] = collectives_to_json(table.collectives)
        if table.collectives.in_updates:
            value["sums_in_updates"] = sorted(table.collectives.in_updates)
    return value


def costs_from_json(
    value: object, graph: TaskGraph, cluster: Cluster, source: str = "costs"
) -> CostTable:
    """Return what a parsed JSON value says of `graph` and `cluster`.

    Parameters
    ----------
    value
        What `json.load` returned.
    graph, cluster
        What costs are asked for.
    source
        What to call the value in messages.

    Raises
    ------
    CostMismatchError
        As `load_costs`.
    """
    return find_costs(table_from_json(value, graph, cluster, source), graph, cluster)


def table_from_json(
    value: object, graph: TaskGraph, cluster: Cluster, source: str = "costs"
) -> CostTable:
    """Return the whole table that a parsed JSON value describes; parameters as of `load_table`.

    Raises
    ------
    CostMismatchError
        As `load_table`.
    """
    file, faults = read_struct(value, CostsFile, source, CostMismatchError)
    _note_missing_digests(file, faults)
    if file.schema_version < SCHEMA_VERSION:
        _check_digests(file, graph, cluster, source, faults)
        tasks, devices = graph.identities, cluster.identities
    else:
        tasks, devices = _identities(file)
    batches = _batches(file)
    builder = TableBuilder(tasks, devices, [batch for batch, _, _ in batches])
    for _, path, entries in batches:
        _note_names(faults, path, entries, [task.name for task in tasks])
        for task in tasks:
            row = entries.get(task.name, {})
            if task.name in entries:
                _note_names(faults, (*path, task.name), row, [device.name for device in devices])
            for device in devices:
                place = (*path, task.name, device.name)
                entry = row.get(device.name)
                builder.add(Cost.unknown() if entry is None else _cost(entry, place, file, faults))
    names = {task.name for task in tasks}
    for position, name in enumerate(file.sums_in_updates):
        if name not in names:
            faults.expected(("sums_in_updates", position), "the name of a task", name)
    faults.check()
    return builder.finalize(collectives_of(file.collectives, file.sums_in_updates))


def _identities(file: CostsFile) -> tuple[tuple[TaskIdentity, ...], tuple[DeviceIdentity, ...]]:
    """Of the tasks and the devices that a file is for."""
    tasks = tuple(TaskIdentity(name, *structs.astuple(row)) for name, row in file.rows.items())
    devices = []
    for name, column in file.columns.items():
        values: list[Any] = [or_none(each) for each in structs.astuple(column)]
        devices.append(DeviceIdentity(name, *values))
    return tasks, tuple(devices)


def _note_missing_digests(file: CostsFile, faults: Faults) -> None:
    for name in ("graph_digest", "cluster_digest"):
        if file.schema_version < SCHEMA_VERSION and not getattr(file, name):
            faults.missing((), name)


def _check_digests(
    file: CostsFile, graph: TaskGraph, cluster: Cluster, source: str, faults: Faults
) -> None:
    """Raise CostMismatchError unless a file of an older version is for `graph` and `cluster`."""
    if not (file.graph_digest and file.cluster_digest):
        faults.check()
    # Before the names are read: those of another graph would only give a heap of unknown ones.
    mismatches = digest_mismatches(graph, cluster, file.graph_digest, file.cluster_digest)
    if mismatches:
        raise CostMismatchError(
            f"{source}: is of version {file.schema_version}, which holds for one graph and one "
            f"cluster only, and was {mismatches[0]}; make it anew, it holds for others then: "
            f"heteroplace profile MODEL.onnx --cluster FILE -o FILE (what was measured is known "
            f"from the store)"
        )


def _entry(kind: type[RowEntry | ColumnEntry], identity: tuple[object, ...]) -> object:
    """The identity without its name, as a value for `json.dump`."""
    values = dict(zip(kind.__struct_fields__, identity[1:], strict=True))
    present: dict[str, Any] = {key: each for key, each in values.items() if each is not None}
    return msgspec.json.decode(msgspec.json.encode(kind(**present)))


def named_costs_from_json(value: object, source: str = "costs") -> list[NamedCost]:
    """Return all cells of a cost file, for printing: the graph and the cluster are not needed.

    Raises
    ------
    CostMismatchError
        The file has faults: all are named, with their JSON paths.
    """
    file, faults = read_struct(value, CostsFile, source, CostMismatchError)
    _note_missing_digests(file, faults)
    cells = [
        NamedCost(task, device, batch, _cost(entry, (*path, task, device), file, faults))
        for batch, path, entries in _batches(file)
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


def _batches(file: CostsFile) -> list[tuple[int, JsonPath, Entries]]:
    """The entries of each number of items, ascending; the first is 1."""
    several = [
        (int(key), ("batch_costs", key), entries) for key, entries in file.batch_costs.items()
    ]
    return [(1, ("costs",), file.costs), *sorted(several, key=lambda batch: batch[0])]


def _note_names(
    faults: Faults, path: JsonPath, entries: dict[str, T], names: Iterable[str]
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
        Those that it should have.
    """
    expected = dict.fromkeys(names)
    if entries.keys() == expected.keys():
        return
    for name in expected:
        if name not in entries:
            faults.missing(path, name)
    faults.unknown(path, entries, expected)


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
    sources = SOURCES[file.schema_version]
    if entry.source not in sources:
        faults.expected((*path, "source"), f"one of {', '.join(sources)}", entry.source)
        return Cost.unknown()
    has_time = entry.source not in SOURCES_WITHOUT_TIME
    ns, error = or_none(entry.ns), or_none(entry.error)
    if has_time and ns is None:
        faults.missing(path, "ns")
    if not has_time and ns is not None:
        faults.add((*path, "ns"), f"a cost that is {entry.source} has no time")
    if entry.source == "measured" and ns is not None:
        error = spread_error(ns, entry.spread_ns)
    source = "roofline" if entry.source == "estimated" else entry.source
    return Cost(ns, source, entry.spread_ns, entry.reason, error)
