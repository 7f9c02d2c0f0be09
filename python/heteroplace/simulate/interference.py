"""What costs do not say: how tasks slow beside each other, and how their times scatter.

A cost is the median time of a task while its device works and the others rest. In a run of several
devices more comes on top, and each is measured in the network itself. Tasks share caches, memory
and sometimes the core's own units with what runs beside them. A step that waits for another device
hears of it a little later, and fetches what that one has made. And since times scatter, a device
that waits for the slower of two mostly waits longer than for the median of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from heteroplace.errors import CostMismatchError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.digests import digest_mismatches
from heteroplace.model.graph import TaskGraph

FloatArray = npt.NDArray[np.float64]

TRANSFERS_PER_WAIT = 2
"""A waiter fetches the line that says "done", then the first line of what was made."""


@dataclass(frozen=True, eq=False)
class Interference:
    """How the tasks of one graph disturb each other on one cluster.

    The arrays are never changed.
    """

    graph_digest: str
    cluster_digest: str
    alone_ns: FloatArray
    """[num_tasks, num_devices]: time of now while all others rest; 0: not measured. Costs may be
    of another day, or of a minute when the machine was quicker."""
    slowdown: FloatArray
    """[num_tasks, num_devices]: time while all other devices of the same memory work, over the
    time while they rest; 1 but for noise where they do not disturb it."""
    copy_slowdown: FloatArray
    """[num_tasks, num_devices]: the same beside copies into and out of the device's memory."""
    scatter: tuple[FloatArray, ...]
    """For each device [num_runs, num_tasks]: time of a task in one run over its median. A row is
    one run, since the times of one run rise and fall together."""
    core_to_core_ns: int
    """Time of a cache line from one core to another; 0: there is one CPU device."""
    fetch_ns_per_byte: float = 0.0
    """What a task takes longer for each byte that it reads first on its device and that another
    device of the same memory has made: it lies in that one's cache."""

    @property
    def wait_ns(self) -> int:
        """From the end of a step to the start of one that waits for it on another device."""
        return TRANSFERS_PER_WAIT * self.core_to_core_ns

    def pace(self, costs: CostTable) -> FloatArray:
        """Return for each device time of now over cost, of the tasks that have both; else 1."""
        cost_ns = np.array(costs.ns[0], dtype=np.float64).reshape(self.alone_ns.shape)
        is_known = (self.alone_ns > 0) & (cost_ns > 0)
        now = np.where(is_known, self.alone_ns, 0.0).sum(axis=0)
        then = np.where(is_known, cost_ns, 0.0).sum(axis=0)
        return np.where(then > 0, now / np.maximum(then, 1.0), 1.0)

    def at_pace_of_costs(self, graph: TaskGraph) -> Interference:
        """Return the same for a graph of equal tasks, where costs are of now."""
        alone_ns = np.zeros(self.alone_ns.shape)
        return replace(self, graph_digest=graph.digest(), alone_ns=alone_ns)

    def on(self, devices: Sequence[int], cluster: Cluster) -> Interference:
        """Return the part for `cluster`, which has only these devices of the one measured."""
        ids = list(devices)
        return replace(
            self,
            cluster_digest=cluster.digest(),
            alone_ns=self.alone_ns[:, ids],
            slowdown=self.slowdown[:, ids],
            copy_slowdown=self.copy_slowdown[:, ids],
            scatter=tuple(self.scatter[index] for index in ids),
        )

    def check(self, graph: TaskGraph, cluster: Cluster) -> None:
        """Raise CostMismatchError unless it belongs to `graph` and `cluster`."""
        mismatches = digest_mismatches(graph, cluster, self.graph_digest, self.cluster_digest)
        if mismatches:
            raise CostMismatchError(
                f"the interference was {mismatches[0]}; measure it again for these"
            )


def no_interference(graph: TaskGraph, cluster: Cluster) -> Interference:
    """Return that of devices that do not disturb each other and tasks that always take as long."""
    shape = (len(graph.tasks), len(cluster.devices))
    steady = np.ones((1, len(graph.tasks)))
    return Interference(
        graph.digest(),
        cluster.digest(),
        np.zeros(shape),
        np.ones(shape),
        np.ones(shape),
        (steady,) * len(cluster.devices),
        0,
    )
