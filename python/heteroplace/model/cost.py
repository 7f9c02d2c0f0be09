"""What each task costs on each device, and where each number comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heteroplace.errors import CostMismatchError, MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph


@dataclass(frozen=True)
class Cost:
    """The run time of one task on one device, or the reason why there is none."""

    ns: int | None
    """Run time in nanoseconds; None: unsupported or unknown."""
    source: str
    """"measured", "estimated", "given" (from a file), "unsupported" or "unknown"."""
    spread_ns: int = 0
    """Half of the interquartile range of the measurements; 0 if not measured."""
    reason: str = ""
    """Why it is unsupported or unknown; otherwise how it was got."""

    @classmethod
    def measured(cls, ns: int, spread_ns: int = 0, reason: str = "") -> Cost:
        """A time that was measured on the device."""
        return cls(ns, "measured", spread_ns, reason)

    @classmethod
    def estimated(cls, ns: int, reason: str = "") -> Cost:
        """A time that was computed from sizes and peak speeds."""
        return cls(ns, "estimated", 0, reason)

    @classmethod
    def given(cls, ns: int) -> Cost:
        """A time that came with the task graph, from elsewhere."""
        return cls(ns, "given")

    @classmethod
    def unsupported(cls, reason: str) -> Cost:
        """The device cannot run the task."""
        return cls(None, "unsupported", 0, reason)

    @classmethod
    def unknown(cls) -> Cost:
        """Nobody has said; using it is an error."""
        return cls(None, "unknown")


@dataclass(frozen=True)
class CostTable:
    """Cost of every task on every device of one graph and one cluster."""

    graph_digest: str
    cluster_digest: str
    rows: tuple[tuple[Cost, ...], ...]
    """[num_tasks][num_devices]"""

    def run_ns(self, task: int, device: int) -> int | None:
        """Return the run time in ns, or None where the device cannot run the task.

        Raises
        ------
        MissingCostError
            The cost is unknown.
        """
        cost = self.rows[task][device]
        if cost.source == "unknown":
            raise MissingCostError(
                f"the cost of task {task} on device {device} is unknown; measure it or give it"
            )
        return cost.ns

    def check(self, graph: TaskGraph, cluster: Cluster) -> None:
        """Raise CostMismatchError unless the table belongs to `graph` and `cluster`."""
        pairs = (
            ("graph", graph.name, self.graph_digest, graph.digest()),
            ("cluster", cluster.name, self.cluster_digest, cluster.digest()),
        )
        for kind, name, expected, got in pairs:
            if expected != got:
                raise CostMismatchError(
                    f"the cost table was made for a {kind} with digest {expected}, but {kind} "
                    f"{name!r} has {got}; measure or convert the costs again"
                )


def allowed_devices(graph: TaskGraph, cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Return for each task the ids of the devices that it may run on."""
    return tuple(
        tuple(
            index
            for index, device in enumerate(cluster.devices)
            if task.devices is None or device.name in task.devices
        )
        for task in graph.tasks
    )


def build_table(graph: TaskGraph, cluster: Cluster, cost: Callable[[int, int], Cost]) -> CostTable:
    """Ask `cost(task, device)` for every pair allowed by the graph and return the table."""
    rows = []
    for task_id, task in enumerate(graph.tasks):
        row = []
        for device_id, device in enumerate(cluster.devices):
            if task.devices is not None and device.name not in task.devices:
                row.append(Cost.unsupported(f"task is pinned to {', '.join(task.devices)}"))
            else:
                row.append(cost(task_id, device_id))
        rows.append(tuple(row))
    return CostTable(graph.digest(), cluster.digest(), tuple(rows))
