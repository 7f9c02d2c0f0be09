"""What the collectives of a plan, or of a grid of them, take: measured where the devices are here.

Groups of CPU devices of this machine are measured (`measure/collective_times.py`), each kind and
number of members once for a model; what others take is said by the links of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from heteroplace.measure.collective_times import MEASURED_KINDS, measure_collectives
from heteroplace.model.cluster import Cluster
from heteroplace.model.collectives import CollectiveCosts, collective_kind
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.transforms.sharded import ShardedGraph

Group = tuple[str, tuple[int, ...]]
"""A kind of collective and its members, in rank order."""
_Fit = tuple[str, int, float, float]


def groups_of_plan(graph: TaskGraph, plan: Plan) -> list[Group]:
    """Return the collectives of a plan, of each kind and number of members the first group."""
    groups: dict[tuple[str, int], Group] = {}
    for step in plan.collectives:
        kind = collective_kind(graph.tasks[step.task].op)
        assert kind is not None
        groups.setdefault((kind.name, len(step.devices)), (kind.name, step.devices))
    return list(groups.values())


def groups_of_grid(
    sharded: ShardedGraph, lanes: Sequence[int], replicas: Sequence[int]
) -> list[Group]:
    """Return the collectives of the graph of one replica, over its lanes and over replicas.

    Parameters
    ----------
    lanes, replicas
        Devices of the first replica, and of the first lane of each.
    """
    groups: dict[Group, None] = {}
    for index, task in enumerate(sharded.graph.tasks):
        kind = collective_kind(task.op)
        if kind is not None:
            members = replicas if sharded.is_over_replicas(index) else lanes
            groups[kind.name, tuple(members)] = None
    return list(groups)


class CollectiveTimes:
    """Measures what is asked, once. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], _Fit | None] = {}

    def of(
        self, cluster: Cluster, groups: Iterable[Group], options: ShardOptions
    ) -> CollectiveCosts | None:
        """Return the fits of those groups that can be measured; None: there are none.

        Raises
        ------
        LoweringError, ExecutionError, InfeasibleError
            As `measure_collectives`.
        """
        keys = []
        for kind, members in groups:
            if kind in MEASURED_KINDS and len(members) > 1 and _are_near(cluster, members):
                keys.append((cluster.digest(), kind, len(members)))
                if keys[-1] not in self._known:
                    options.say(f"Measuring {kind} over {len(members)} devices")
                    fits = measure_collectives(cluster, members, [kind]).fits
                    self._known[keys[-1]] = fits[0] if fits else None
        costs = [self._known[key] for key in dict.fromkeys(keys)]
        fits = tuple(sorted(fit for fit in costs if fit is not None))
        return CollectiveCosts(fits) if fits else None


def _are_near(cluster: Cluster, members: Collection[int]) -> bool:
    """Whether all are CPUs of one host, whose clock times them."""
    devices = [cluster.devices[member] for member in members]
    is_cpu = all(device.kind == "cpu" and device.cores for device in devices)
    return is_cpu and len({device.host for device in devices}) == 1
