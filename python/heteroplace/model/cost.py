"""What each task costs on each device, and where each number comes from.

A table is columns, not objects: 200,000 cells are read, handed to the core and compared without an
object per cell. `Cost` is what people read and write; a table makes one when asked for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveCosts, collective_kind
from heteroplace.model.graph import Task, TaskGraph
from heteroplace.model.identity import DeviceIdentity, TaskIdentity
from heteroplace.model.kernel_rules import why_barred

NO_TIME = -1
"""In `CostTable.ns`: the device cannot or may not run the task."""
UNKNOWN = -2
"""In `CostTable.ns`: nobody has said; using it is an error."""

PREDICTED = ("scaled", "regressed", "roofline")
"""Sources of times that nobody measured, the most trustworthy first: a time measured on another
device or of an equal kernel, scaled (Habitat's wave scaling); fitted to other kernels of the same
device; the larger of computing at peak speed and moving data at peak bandwidth."""
SOURCES_WITH_TIME = ("measured", "given", *PREDICTED)
"""From the most to the least trustworthy."""
SOURCES_WITHOUT_TIME = ("unsupported", "excluded", "unknown")
"""The device cannot run the task; it may not, and nobody has asked for its time; nobody has said,
and using it is an error."""

MAX_NS = 2**63 - 1
"""Longest time that a table can hold: 292 years."""


@dataclass(frozen=True)
class Cost:
    """The run time of one task on one device, or the reason why there is none."""

    ns: int | None
    """Run time in nanoseconds; None: unsupported, excluded or unknown."""
    source: str
    """One of SOURCES_WITH_TIME ("given": from a file) or SOURCES_WITHOUT_TIME."""
    spread_ns: int = 0
    """Half of the interquartile range of the measurements; 0 if not measured or not known."""
    reason: str = ""
    """Why it has no time; otherwise how it was got."""
    error: float | None = None
    """Relative error to expect, e.g. 0.15: half of such times are within it. Measured: spread over
    time. Predicted: from cross-validation. None: nothing is known about it."""

    @classmethod
    def measured(cls, ns: int, spread_ns: int = 0, reason: str = "") -> Cost:
        """A time that was measured on the device."""
        return cls(ns, "measured", spread_ns, reason, spread_error(ns, spread_ns))

    @classmethod
    def scaled(cls, ns: int, reason: str = "", error: float | None = None) -> Cost:
        """A time that was measured of an equal kernel or on another device, and scaled."""
        return cls(ns, "scaled", 0, reason, error)

    @classmethod
    def regressed(cls, ns: int, reason: str = "", error: float | None = None) -> Cost:
        """A time from a model that was fitted to other kernels of the same device."""
        return cls(ns, "regressed", 0, reason, error)

    @classmethod
    def roofline(cls, ns: int, reason: str = "", error: float | None = None) -> Cost:
        """A time that was computed from sizes and peak speeds."""
        return cls(ns, "roofline", 0, reason, error)

    @classmethod
    def given(cls, ns: int) -> Cost:
        """A time that came with the task graph, from elsewhere."""
        return cls(ns, "given")

    @classmethod
    def unsupported(cls, reason: str) -> Cost:
        """The device cannot run the task."""
        return cls(None, "unsupported", 0, reason)

    @classmethod
    def excluded(cls, reason: str) -> Cost:
        """The task may not run on the device, so nobody has asked what it takes there."""
        return cls(None, "excluded", 0, reason)

    @classmethod
    def unknown(cls) -> Cost:
        """Nobody has said; using it is an error."""
        return cls(None, "unknown")


def spread_error(ns: int, spread_ns: int) -> float | None:
    """Return the relative error of a measured time; None where no spread is known.

    >>> spread_error(200, 3)
    0.015
    """
    return spread_ns / ns if ns and spread_ns else None


class Detail(NamedTuple):
    """All of a Cost but its time."""

    source: str
    spread_ns: int = 0
    reason: str = ""
    error: float | None = None


Rows = tuple[tuple[Cost, ...], ...]
"""[num_tasks][num_devices]"""


@dataclass(frozen=True)
class CostTable:
    """Cost of some tasks on some devices, for some batch sizes.

    Made by `build_table`, `table_from_rows` or `TableBuilder` for the tasks of a graph and the
    devices of a cluster; equal cells make equal tables. `heteroplace.model.cost_lookup` finds what
    a table says of other graphs and clusters. The arrays are never changed.
    """

    tasks: tuple[TaskIdentity, ...]
    """Of the rows."""
    devices: tuple[DeviceIdentity, ...]
    """Of the columns."""
    batches: tuple[int, ...]
    """Numbers of items run together that have costs, ascending; the first is 1."""
    ns: tuple[array[int], ...]
    """For each batch [num_tasks * num_devices] of run times in ns, NO_TIME or UNKNOWN."""
    detail_ids: tuple[array[int], ...]
    """For each batch [num_tasks * num_devices] of positions in `details`."""
    details: tuple[Detail, ...]
    """What the cells say beside their time, each once, in the order of first use."""
    collectives: CollectiveCosts | None = None
    """Times of collectives that were fitted to measurements; None: those of rings."""

    @property
    def num_tasks(self) -> int:
        """Number of rows."""
        return len(self.tasks)

    @property
    def num_devices(self) -> int:
        """Number of columns."""
        return len(self.devices)

    @property
    def is_measured(self) -> bool:
        """Whether all times are measured ones, which interference was measured beside."""
        sources = {detail.source for detail in self.details}
        return sources & set(SOURCES_WITH_TIME) == {"measured"}

    @cached_property
    def rows(self) -> Rows:
        """All costs of batch 1, [num_tasks][num_devices]; made on first use."""
        return self.rows_of(1)

    def rows_of(self, batch: int) -> Rows:
        """Return all costs of a batch size, [num_tasks][num_devices]; raises as `run_ns`."""
        self._position(batch)
        devices = range(self.num_devices)
        return tuple(
            tuple(self.cost(task, device, batch) for device in devices)
            for task in range(self.num_tasks)
        )

    def cost(self, task: int, device: int, batch: int = 1) -> Cost:
        """Return one cell; raises MissingCostError if the table is not for that batch size."""
        position, cell = self._position(batch), task * self.num_devices + device
        ns = self.ns[position][cell]
        return Cost(ns if ns >= 0 else None, *self.details[self.detail_ids[position][cell]])

    def run_ns(self, task: int, device: int, batch: int = 1) -> int | None:
        """Return the run time of `batch` items in ns, or None where the device cannot run it.

        Raises
        ------
        MissingCostError
            The cost is unknown, or the table has no costs for that batch size.
        """
        ns = self.ns[self._position(batch)][task * self.num_devices + device]
        if ns == UNKNOWN:
            raise MissingCostError(
                f"the cost of task {self.tasks[task].name!r} on device "
                f"{self.devices[device].name!r} is unknown; measure it or give it"
            )
        return None if ns == NO_TIME else ns

    def check(self, graph: TaskGraph, cluster: Cluster) -> None:
        """Raise CostMismatchError unless rows and columns are those of `graph` and `cluster`."""
        fault = _difference("task", self.tasks, graph.identities) or _difference(
            "device", self.devices, cluster.identities
        )
        if fault:
            raise CostMismatchError(
                f"the cost table is not for graph {graph.name!r} on cluster {cluster.name!r}: "
                f"{fault}; find_costs(table, graph, cluster) takes from it what holds for them"
            )

    def _position(self, batch: int) -> int:
        if batch not in self.batches:
            raise MissingCostError(
                f"the cost table has no times for {batch} items run together; it has them for "
                f"{', '.join(map(str, self.batches))}; measure or give them"
            )
        return self.batches.index(batch)


class TableBuilder:
    """Collects cells in the order batch, task, device, and makes the table of them."""

    def __init__(
        self,
        tasks: tuple[TaskIdentity, ...],
        devices: tuple[DeviceIdentity, ...],
        batches: Iterable[int] = (1,),
    ) -> None:
        """Begin a table; raises CostMismatchError if `batches` is not ascending from 1."""
        self._tasks = tasks
        self._devices = devices
        self._batches = tuple(batches)
        if self._batches[:1] != (1,) or list(self._batches) != sorted(set(self._batches)):
            raise CostMismatchError(
                f"the batch sizes of a cost table are {self._batches}; expected 1 and then larger "
                f"ones, ascending"
            )
        self._ns = array("q")
        self._ids = array("i")
        self._details: dict[Detail, int] = {}

    def add(self, cost: Cost) -> None:
        """Add the next cell; raises CostMismatchError for a time that 63 bits cannot hold."""
        detail = Detail(cost.source, cost.spread_ns, cost.reason, cost.error)
        if cost.ns is None:
            self._ns.append(UNKNOWN if cost.source == "unknown" else NO_TIME)
        elif cost.ns > MAX_NS:
            raise _too_long(cost.ns)
        else:
            self._ns.append(cost.ns)
        self._ids.append(self._details.setdefault(detail, len(self._details)))

    def add_times(self, times: Iterable[int], detail: Detail) -> None:
        """Add cells that have times in ns and say nothing else of their own; raises as `add`."""
        before = len(self._ns)
        added = list(times)
        if max(added, default=0) > MAX_NS:
            raise _too_long(max(added))
        self._ns.extend(array("q", added))
        number = len(self._ns) - before
        if number:
            detail_id = self._details.setdefault(detail, len(self._details))
            self._ids.extend(array("i", (detail_id,)) * number)

    def finalize(self, collectives: CollectiveCosts | None = None) -> CostTable:
        """Return the table, with those times of collectives."""
        size = len(self._ns) // len(self._batches)
        starts = range(0, size * len(self._batches), size) if size else [0] * len(self._batches)
        return CostTable(
            self._tasks,
            self._devices,
            self._batches,
            tuple(self._ns[start : start + size] for start in starts),
            tuple(self._ids[start : start + size] for start in starts),
            tuple(self._details),
            collectives,
        )


def _too_long(ns: int) -> CostMismatchError:
    return CostMismatchError(f"a run time of {ns} ns; expected at most {MAX_NS}: check its unit")


def allowed_devices(graph: TaskGraph, cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return for each task the ids of the devices that it may run on.

    Neither its pins nor the rules about kernels (`kernel_rules.py`) bar it there.
    """
    kinds = [device.kind for device in cluster.devices]
    barred = {
        op: {index for index, kind in enumerate(kinds) if why_barred(op, kind)}
        for op in dict.fromkeys(task.op for task in graph.tasks)
    }
    everywhere = tuple(range(len(kinds)))
    names = [device.name for device in cluster.devices]
    return tuple(
        everywhere
        if task.devices is None and not barred[task.op]
        else tuple(
            index
            for index in everywhere
            if index not in barred[task.op]
            and (task.devices is None or names[index] in task.devices)
        )
        for task in graph.tasks
    )


def build_table(
    graph: TaskGraph,
    cluster: Cluster,
    cost: Callable[..., Cost],
    batches: tuple[int, ...] = (1,),
) -> CostTable:
    """Ask `cost` for every pair allowed by the graph and return the table; collectives have none.

    Parameters
    ----------
    cost
        Called with (task, device) if `batches` is (1,), and with (task, device, batch) otherwise.
    batches
        Batch sizes, ascending from 1.
    """
    builder = TableBuilder(graph.identities, cluster.identities, batches)
    allowed = allowed_devices(graph, cluster)
    devices = range(len(cluster.devices))
    for batch in batches:
        tail = () if batches == (1,) else (batch,)
        for task_id, task in enumerate(graph.tasks):
            is_collective = collective_kind(task.op) is not None
            for device_id in devices:
                if is_collective:
                    builder.add(of_several_devices())
                elif device_id not in allowed[task_id]:
                    builder.add(barred_cost(task, cluster.devices[device_id].kind))
                else:
                    builder.add(cost(task_id, device_id, *tail))
    return builder.finalize()


def barred_cost(task: Task, kind: str) -> Cost:
    """Return the cost of a task on a device of a kind that it is not allowed on."""
    reason = why_barred(task.op, kind)
    return Cost.unsupported(reason) if reason else pinned_elsewhere(task)


def pinned_elsewhere(task: Task) -> Cost:
    """Return the cost of a task on a device that its pins exclude."""
    return Cost.excluded(f"task is pinned to {', '.join(task.devices or ())}")


def of_several_devices() -> Cost:
    """Return the cost of a collective on one device."""
    return Cost.unsupported("a collective runs on several devices; see `collectives`")


def without_barred(table: CostTable, graph: TaskGraph, cluster: Cluster) -> CostTable:
    """Return the table of `graph` and `cluster` without times where tasks may not run."""
    if all(len(ids) == len(cluster.devices) for ids in allowed_devices(graph, cluster)):
        return table
    allowed = build_table(graph, cluster, table.cost, table.batches)
    return replace(allowed, collectives=table.collectives)


def table_from_rows(
    graph: TaskGraph, cluster: Cluster, rows: Rows, larger: dict[int, Rows] | None = None
) -> CostTable:
    """Return the table of the rows of batch 1, and of larger batches by their size, ascending."""
    by_batch = {1: rows, **(larger or {})}
    builder = TableBuilder(graph.identities, cluster.identities, by_batch)
    for batch_rows in by_batch.values():
        for row in batch_rows:
            for cost in row:
                builder.add(cost)
    return builder.finalize()


def _difference(
    kind: str,
    own: Sequence[TaskIdentity | DeviceIdentity],
    others: Sequence[TaskIdentity | DeviceIdentity],
) -> str:
    """What differs first, as text; "" if nothing does."""
    if own == others:
        return ""
    if len(own) != len(others):
        return f"it has {len(own)} {kind}s, expected {len(others)}"
    index = next(index for index, identity in enumerate(own) if identity != others[index])
    identity, expected = own[index], others[index]
    if identity.name != expected.name:
        return f"{kind} {index} is {identity.name!r} in it, expected {expected.name!r}"
    return f"{kind} {identity.name!r} is {identity} in it, expected {expected}"


def batches_of(cluster: Cluster, items: int, graph: TaskGraph | None = None) -> list[int]:
    """Return the sizes of batches that plans of so many items may have, ascending from 1.

    Of a graph with routers also the capacities of their branches, which are batches of cells.
    """
    sizes = {size for device in cluster.devices for size in device.batch_sizes}
    routers = () if graph is None else graph.routers
    capacities = {size for router in routers for own in router.capacities for size in own}
    return sorted({1} | {size for size in sizes if size <= items} | capacities)
