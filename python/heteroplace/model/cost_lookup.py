"""A cost table + any graph and cluster -> what the table says of them, and what it does not say.

A cell holds for a task that computes the same and a device that is the same (`TaskIdentity`,
`DeviceIdentity`). So pins, excluded devices, memory limits, links, more or fewer devices and other
orders leave every cell valid, and so does a device of another name that is otherwise equal. Times
that were predicted also depend on the figures that the cluster gives for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import collective_kind
from heteroplace.model.cost import (
    PREDICTED,
    UNKNOWN,
    Cost,
    CostTable,
    TableBuilder,
    allowed_devices,
    barred_cost,
    of_several_devices,
)
from heteroplace.model.graph import TaskGraph
from heteroplace.model.identity import DeviceIdentity, TaskIdentity
from heteroplace.model.kernel_rules import why_barred
from heteroplace.terminal import listed

_NOT_SAID = ("excluded", "unknown")


def find_costs(table: CostTable, graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return the costs of `graph` on `cluster` as far as `table` knows them; others are unknown.

    A task of a name that the table has not, whose work it has, gets the median of what was measured
    of that work, as "scaled". Where several devices are like one that the table has not, and their
    times differ, none is taken. Times that somebody gave are of the device of that name only.

    Raises
    ------
    CostMismatchError
        The table knows none of the tasks.
    """
    is_same = table.tasks == graph.identities and table.devices == cluster.identities
    if is_same and not any(detail.source == "excluded" for detail in table.details):
        return table
    rows = _Rows(table)
    matching_rows = [rows.of(task) for task in graph.identities]
    if graph.tasks and not any(matching_rows):
        raise CostMismatchError(
            f"the cost table knows none of the tasks of graph {graph.name!r}: "
            f"{rows.why_not(graph.identities[0])}; measure the costs of this graph"
        )
    columns = [_columns(table, device) for device in cluster.identities]
    allowed = [set(ids) for ids in allowed_devices(graph, cluster)]
    builder = TableBuilder(graph.identities, cluster.identities, table.batches)
    for batch in table.batches:
        for task_id, task in enumerate(graph.tasks):
            is_named = bool(matching_rows[task_id]) and rows.is_named(task_id, graph.identities)
            for device_id, (own, others) in enumerate(columns):
                device = cluster.identities[device_id]
                cells = [
                    _cell(table, row, device, own, others, batch) for row in matching_rows[task_id]
                ]
                cost = (
                    cells[0] if is_named else _of_equal_work(table, matching_rows[task_id], cells)
                )
                if cost is not None:
                    builder.add(cost)
                elif collective_kind(graph.tasks[task_id].op) is not None:
                    builder.add(of_several_devices())
                elif device_id in allowed[task_id]:
                    builder.add(Cost.unknown())
                else:
                    builder.add(barred_cost(task, cluster.devices[device_id].kind))
    return builder.finalize(table.collectives)


def without_unsafe(table: CostTable, graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return the table of `graph` and `cluster` without times that a rule about kernels bars.

    Times that a pin bars stay: a cost holds for a task on a device, whatever else it may run on.
    """
    if not any(why_barred(task.op, d.kind) for task in graph.tasks for d in cluster.devices):
        return table
    builder = TableBuilder(table.tasks, table.devices, table.batches)
    for batch in table.batches:
        for task_id, task in enumerate(graph.tasks):
            for device_id, device in enumerate(cluster.devices):
                is_barred = bool(why_barred(task.op, device.kind))
                own = table.cost(task_id, device_id, batch)
                builder.add(barred_cost(task, device.kind) if is_barred else own)
    return builder.finalize(table.collectives)


def unknown_cells(
    table: CostTable, graph: TaskGraph, cluster: Cluster
) -> list[tuple[int, int, int]]:
    """Return (batch, task, device) of every cell that is needed and unknown."""
    if not any(UNKNOWN in times for times in table.ns):
        return []
    allowed = allowed_devices(graph, cluster)
    return [
        (batch, task, device)
        for batch in table.batches
        for task, ids in enumerate(allowed)
        for device in ids
        if table.cost(task, device, batch).source == "unknown"
    ]


def check_known(
    table: CostTable, graph: TaskGraph, cluster: Cluster, source: CostTable, advice: str
) -> None:
    """Raise MissingCostError if a cost is unknown: which, why, and `advice`.

    Parameters
    ----------
    table
        What `find_costs` found for `graph` and `cluster`.
    source
        Where it looked.
    """
    cells = unknown_cells(table, graph, cluster)
    if not cells:
        return
    names = [
        f"task {graph.tasks[task].name!r} on {cluster.devices[device].name!r}"
        + (f" in a batch of {batch}" if batch > 1 else "")
        for batch, task, device in cells
    ]
    rows = _Rows(source)
    reasons = [
        rows.why_not(graph.identities[task])
        for task in dict.fromkeys(task for _, task, _ in cells)
        if not rows.of(graph.identities[task])
    ]
    reasons += [
        _why_no_column(source, cluster.identities[device])
        for device in dict.fromkeys(device for _, _, device in cells)
        if not any(_columns(source, cluster.identities[device]))
    ]
    why = f" ({'; '.join(reasons[:2])})" if reasons else ""
    raise MissingCostError(f"the cost table does not know: {listed(names)}{why}. {advice}")


class _Rows:
    """The rows of a table by what they compute."""

    def __init__(self, table: CostTable) -> None:
        self._tasks = table.tasks
        self._named = {task: index for index, task in enumerate(table.tasks)}
        self._by_work: dict[tuple[object, ...], list[int]] = {}
        for index, task in enumerate(table.tasks):
            self._by_work.setdefault(task.work, []).append(index)

    def of(self, task: TaskIdentity) -> list[int]:
        """The row of the task; else those of equal work; [] if there are none."""
        if task in self._named:
            return [self._named[task]]
        return self._by_work.get(task.work, [])

    def is_named(self, task_id: int, identities: Sequence[TaskIdentity]) -> bool:
        """Say whether the table has the task by its name, doing the same work."""
        return identities[task_id] in self._named

    def why_not(self, task: TaskIdentity) -> str:
        """Why there is no row of a task."""
        for own in self._tasks:
            if own.name == task.name:
                return f"task {task.name!r} is {task} here, and {own} in the table"
        return f"task {task.name!r}, which is {task}, is not in it"


def _columns(table: CostTable, device: DeviceIdentity) -> tuple[list[int], list[int]]:
    """The column of the device itself, if there is one, and those of devices that are like it."""
    alike = [
        index
        for index, own in enumerate(table.devices)
        if own.measures_alike == device.measures_alike
    ]
    own = [index for index in alike if table.devices[index].name == device.name]
    return own, [index for index in alike if index not in own]


def _cell(
    table: CostTable,
    row: int,
    device: DeviceIdentity,
    own: Sequence[int],
    others: Sequence[int],
    batch: int,
) -> Cost | None:
    """What the table says of a row on a device; None: nothing, or different things."""
    for columns, is_named in ((own, True), (others, False)):
        costs: dict[tuple[int | None, str], Cost] = {}
        for column in columns:
            cost = table.cost(row, column, batch)
            if cost.source in PREDICTED:
                is_valid = table.devices[column].predicts_alike == device.predicts_alike
            elif is_named:
                is_valid = cost.source not in _NOT_SAID
            else:
                is_valid = cost.source == "measured"  # what is given, is for one device
            if is_valid:
                costs.setdefault((cost.ns, cost.source), cost)
        if costs:
            return next(iter(costs.values())) if len(costs) == 1 else None
    return None


def _of_equal_work(
    table: CostTable, rows: Sequence[int], cells: Sequence[Cost | None]
) -> Cost | None:
    """The lower median of what was measured of rows of one work; None: nothing was."""
    measured = [
        (cell.ns, row, cell)
        for row, cell in zip(rows, cells, strict=True)
        if cell is not None and cell.ns is not None and cell.source == "measured"
    ]
    if not measured:
        return None
    measured.sort(key=lambda entry: entry[:2])
    ns, row, cell = measured[(len(measured) - 1) // 2]
    return Cost.scaled(ns, f"as {table.tasks[row].name}, which does the same work", cell.error)


def _why_no_column(table: CostTable, device: DeviceIdentity) -> str:
    named = [own for own in table.devices if own.name == device.name]
    if named:
        return f"device {device.name!r} is {device} here, and {named[0]} in the table"
    names = ", ".join(own.name for own in table.devices) or "none"
    return f"device {device.name!r} ({device}) is like none of its devices: {names}"
