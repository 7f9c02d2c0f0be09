"""Options and a cluster -> the devices that ranks of a plan may have.

A cluster often has more devices: `cpu.all` shares its cores with `cpu.0`, and an option names some
devices only. Kernels never run on those, so their costs are neither measured nor needed.
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.parts.parallel.sharding.shard_options import ShardOptions
from heteroplace.parts.parallel.transforms.degrees import devices_at_once


def rank_ids(cluster: Cluster, options: ShardOptions) -> tuple[int, ...] | None:
    """Return the ids of the devices that the options name; None: they name none.

    Raises
    ------
    ClusterError
        The cluster has no such device.
    """
    if options.devices is None:
        return None
    return tuple(cluster.device_id(name) for name in options.devices)


def candidate_names(cluster: Cluster, options: ShardOptions) -> tuple[str, ...]:
    """Return the names of all devices that some degrees may use, in the order of the cluster.

    Raises
    ------
    ClusterError
        As `rank_ids`.
    """
    named = rank_ids(cluster, options)
    ids = devices_at_once(cluster) if named is None else named
    return tuple(cluster.devices[index].name for index in sorted(set(ids)))
