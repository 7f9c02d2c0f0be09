"""Read and write cost tables as JSON, and turn run times that came with a graph into a table.

A file names tasks and devices, and holds the digests of the graph and the cluster it was made for.
Costs of larger batches stand in the optional field `batch_costs`, by the number of items. Version 1
knew one kind of predicted time, "estimated", which is read as "roofline".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.files.graph import Times
from heteroplace.files.reader import (
    Faults,
    ObjectReader,
    a_count,
    a_number,
    a_text,
    read_json,
    schema_version,
    write_json,
)
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
    """Return the table that a parsed JSON value describes; raises as `load_costs`."""
    faults = Faults(source, CostMismatchError)
    header = _read_header(value, faults)
    # Before the rows are read: those of another graph would only give a heap of unknown names.
    check_digests(graph, cluster, header.graph_digest, header.cluster_digest)
    tasks = [task.name for task in graph.tasks]
    devices = [device.name for device in cluster.devices]
    first, *larger = (
        _read_rows(rows, tasks, devices, header.sources) for rows in header.rows.values()
    )
    faults.check()
    batches = list(header.rows)[1:]
    return table_from_rows(
        header.graph_digest, cluster, first, dict(zip(batches, larger, strict=True))
    )


def named_costs_from_json(value: object, source: str = "costs") -> list[NamedCost]:
    """Return all cells of a cost file, for printing: the graph and the cluster are not needed.

    Raises
    ------
    CostMismatchError
        The file has faults: all are named, with their JSON paths.
    """
    faults = Faults(source, CostMismatchError)
    header = _read_header(value, faults)
    cells = []
    for batch, rows in header.rows.items():
        for task, path, row in rows.entries():
            devices = ObjectReader(row, path, faults)
            for device, cell_path, cell in devices.entries():
                cost = _read_cost(ObjectReader(cell, cell_path, faults), header.sources)
                cells.append(NamedCost(task, device, batch, cost))
    faults.check()
    return cells


@dataclass(frozen=True)
class NamedCost:
    """One cell of a cost file."""

    task: str
    device: str
    batch: int
    cost: Cost


@dataclass(frozen=True)
class _Header:
    """A cost file whose cells are not read yet."""

    graph_digest: str
    cluster_digest: str
    sources: tuple[str, ...]
    """What `source` of a cell may be."""
    rows: dict[int, ObjectReader]
    """Readers of the cells by batch size, ascending; the first is 1."""


def _read_header(value: object, faults: Faults) -> _Header:
    root = ObjectReader(value, "$", faults)
    version = schema_version(root, SCHEMA_VERSION, OLDEST_VERSION)
    root.optional("graph", a_text, "")
    root.optional("cluster", a_text, "")
    graph_digest = root.required("graph_digest", a_text, "")
    cluster_digest = root.required("cluster_digest", a_text, "")
    rows = root.entry("costs")
    larger = _batch_entries(root)
    root.finish()
    faults.check()
    by_batch = {1: rows, **dict(sorted(larger.items()))}
    return _Header(graph_digest, cluster_digest, _SOURCES[version], by_batch)


def _batch_entries(root: ObjectReader) -> dict[int, ObjectReader]:
    """The readers of `batch_costs` by batch size; the keys of a JSON object are text."""
    if not root.has("batch_costs"):
        return {}
    entries: dict[int, ObjectReader] = {}
    for key, path, value in root.entry("batch_costs").entries():
        if re.fullmatch("[1-9][0-9]{0,8}", key) and key != "1":
            entries[int(key)] = ObjectReader(value, path, root.faults)
        else:
            root.faults.add(path, "expected a number of items above 1 as the key")
    return entries


def _read_rows(
    rows: ObjectReader, tasks: Sequence[str], devices: Sequence[str], sources: tuple[str, ...]
) -> Rows:
    """The cells of these tasks and devices, by their names; others are faults."""
    table = []
    for task in tasks:
        row = rows.entry(task)
        table.append(tuple(_read_cost(row.entry(device), sources) for device in devices))
        row.finish()
    rows.finish()
    return tuple(table)


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


def _read_cost(reader: ObjectReader, sources: tuple[str, ...]) -> Cost:
    source = reader.required("source", _one_of(sources), "unknown")
    has_time = source not in SOURCES_WITHOUT_TIME
    ns = (reader.required if has_time else reader.optional)("ns", a_count, None)
    if not has_time and ns is not None:
        reader.faults.add(f"{reader.path}.ns", f"a cost that is {source} has no time")
    spread_ns = reader.optional("spread_ns", a_count, 0)
    reason = reader.optional("reason", a_text, "")
    error = reader.optional("error", a_number, None)
    reader.finish()
    if source == "measured" and ns is not None:
        error = spread_error(ns, spread_ns)
    return Cost(ns, "roofline" if source == "estimated" else source, spread_ns, reason, error)


def _one_of(sources: tuple[str, ...]) -> Callable[[object], str]:
    def convert(value: object) -> str:
        if value not in sources:
            raise ValueError(f"one of {', '.join(sources)}")
        return str(value)

    return convert
