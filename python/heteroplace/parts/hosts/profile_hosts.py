"""`mpiexec ... heteroplace profile`: each host measures its devices, in place and all at once.

What is measured comes into one store, that of the first rank, and into one cost table. Loaded late,
as it needs TVM.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from heteroplace.costs.store import CostStore
from heteroplace.costs.store_values import Row, StoreFilter
from heteroplace.errors import CostMismatchError
from heteroplace.machine.fingerprint import device_fingerprint
from heteroplace.measure.measure_options import ProfileOptions
from heteroplace.measure.model_profile import ModelProfile
from heteroplace.measure.profile import Profile, join_batches
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import Cost, table_from_rows
from heteroplace.model.graph import TaskGraph
from heteroplace.model.hosts import on_host
from heteroplace.run.transport import Ranks

_MAX_NAMED = 3


@dataclass(frozen=True)
class HostPart:
    """What one rank has found out."""

    graph: TaskGraph
    rows: Mapping[int, tuple[tuple[Cost, ...], ...]]
    """By batch size: [num_tasks][devices of the host]."""
    profiles: dict[int, Profile]


def profile_hosts(
    cluster: Cluster,
    ranks: Ranks,
    options: ProfileOptions,
    profile: Callable[[Cluster, ProfileOptions], ModelProfile],
) -> ModelProfile:
    """Measure a model on all hosts of a cluster, rank i on `cluster.hosts[i]`; all ranks.

    Parameters
    ----------
    options
        Its `store`, of the first rank, has what all measured: of the other hosts at the end.
    profile
        Measures the devices of one host; the model is the same on every host.

    Returns
    -------
    ModelProfile
        Of the whole cluster, with the largest workspace that a task needs on any host.

    Raises
    ------
    CostMismatchError
        The hosts have not the same model.
    HeteroPlaceError
        As `profile`.
    """
    part = on_host(cluster, cluster.hosts[ranks.rank])
    devices = [device_fingerprint(device) for device in part.devices]
    with _own_store(ranks, options.store, devices) as store:
        own = profile(part, replace(options, store=store))
        news = [] if options.store is store else list(own.measurements.items())
    for rows in ranks.gather(news):
        if options.store is not None:
            options.store.add_many(rows)
    rows_of = {batch: each.costs.rows for batch, each in own.profiles.items()}
    parts = ranks.gather(HostPart(own.graph, rows_of, own.profiles))
    return _joined(cluster, parts)


@contextmanager
def _own_store(
    ranks: Ranks, store: CostStore | None, devices: Sequence[str]
) -> Iterator[CostStore]:
    """The first rank's store; for another one, what that knows of its devices."""
    requested_devices = ranks.gather(tuple(dict.fromkeys(devices)))
    rows_of_devices: list[list[Row]] = [[] for _ in requested_devices]
    if store is not None:
        for rank, names in enumerate(requested_devices[1:], start=1):
            rows_of_devices[rank] = [row for name in names for row in store.rows(_of_device(name))]
    given = ranks.gather(rows_of_devices)[0]
    if store is not None:
        yield store
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        CostStore(Path(folder, "costs.sqlite")) as own,
    ):
        own.add_many(given[ranks.rank])
        yield own


def _of_device(fingerprint: str) -> StoreFilter:
    return StoreFilter(device=glob.escape(fingerprint))


def _joined(cluster: Cluster, parts: Sequence[HostPart]) -> ModelProfile:
    """One graph and one table of what all hosts have found."""
    graph = _joined_graph(cluster, parts)
    hosts = [cluster.hosts.index(device.host) for device in cluster.devices]
    places = [hosts[:index].count(host) for index, host in enumerate(hosts)]
    tables = {}
    profiles: dict[int, Profile] = {}
    for batch in parts[0].rows:
        rows = tuple(
            tuple(
                parts[host].rows[batch][task][place]
                for host, place in zip(hosts, places, strict=True)
            )
            for task in range(len(graph.tasks))
        )
        tables[batch] = table_from_rows(graph, cluster, rows)
        of_hosts = [part.profiles[batch] for part in parts]
        profiles[batch] = Profile(
            tables[batch],
            {key: value for each in of_hosts for key, value in each.measurements.items()},
            max(each.num_kernels for each in of_hosts),
            sum(each.num_known for each in of_hosts),
            sum(each.num_measured for each in of_hosts),
            sum(each.num_dropped for each in of_hosts),
            max(each.wall_s for each in of_hosts),
            max(each.compile_s for each in of_hosts),
            max(each.measure_s for each in of_hosts),
        )
    return ModelProfile(graph, join_batches(graph, cluster, tables), profiles)


def _joined_graph(cluster: Cluster, parts: Sequence[HostPart]) -> TaskGraph:
    first = parts[0].graph
    for host, part in zip(cluster.hosts, parts, strict=True):
        if part.graph.identities != first.identities or part.graph.tensors != first.tensors:
            own = {task.name for task in part.graph.tasks}
            missing = [task.name for task in first.tasks if task.name not in own]
            named = ", ".join(missing[:_MAX_NAMED]) or "none of its tasks, but their form"
            raise CostMismatchError(
                f"host {host!r} has another model than host {cluster.hosts[0]!r}: it lacks "
                f"{named}; give every host the same file"
            )
    tasks = tuple(
        replace(
            task, workspace_bytes=max(part.graph.tasks[index].workspace_bytes for part in parts)
        )
        for index, task in enumerate(first.tasks)
    )
    return replace(first, tasks=tasks)
