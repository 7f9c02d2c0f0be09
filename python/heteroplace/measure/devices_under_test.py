"""Which devices are measured, and under which placement of the whole network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import allowed_devices
from heteroplace.model.graph import TaskGraph
from heteroplace.run.missing_devices import missing_devices

DeviceClass = tuple[str, int, str, str]
"""Target, number of cores, host and model: what devices have in common that take equally long."""


@dataclass(frozen=True)
class DeviceUnderTest:
    """A device to measure, and where every task runs meanwhile."""

    device: int
    placement: tuple[int, ...]
    """Device of each task: the one to measure, unless the task may not run on it."""
    is_local: bool
    """All devices of `placement` are in this machine, so that the network can run."""


def device_class(cluster: Cluster, index: int) -> DeviceClass:
    """Return what a device has in common with those that take equally long for everything."""
    device = cluster.devices[index]
    return device.target, len(device.cores), device.host, device.model


def find_devices_under_test(
    graph: TaskGraph,
    cluster: Cluster,
    remote_hosts: Collection[str] = (),
    skips_absent: bool = False,
) -> list[DeviceUnderTest]:
    """Return one device of each device_class that some task may run on.

    Parameters
    ----------
    remote_hosts
        Names of other machines that can be measured on.
    skips_absent
        Leave out devices that are neither in this machine nor on one of those.

    Raises
    ------
    MissingCostError
        There is such a device and it is not to be left out.
    """
    allowed = allowed_devices(graph, cluster)
    used = [index for index in range(len(cluster.devices)) if any(index in ids for ids in allowed)]
    is_remote = [device.host in remote_hosts for device in cluster.devices]
    names = [cluster.devices[index].name for index in used if not is_remote[index]]
    absent = missing_devices(cluster, names)
    is_absent = [bool(missing_devices(cluster, [device.name])) for device in cluster.devices]
    used = [index for index in used if is_remote[index] or not is_absent[index]]
    if absent and not skips_absent:
        raise MissingCostError(
            "cannot measure on devices that are not in this machine: " + "; ".join(absent) + ". "
            'Give costs=... ("predict" if others are here, a table from that machine, or '
            '"estimate"), or exclude=... them'
        )
    under_test: dict[DeviceClass, DeviceUnderTest] = {}
    for index in used:
        alike = device_class(cluster, index)
        if alike in under_test:
            continue
        same = {other for other in used if device_class(cluster, other) == alike}
        placement, cores = [], cluster.devices[index].cores
        for ids in allowed:
            here = [device for device in ids if device in used]
            near = [device for device in here if not is_remote[device]]
            # Rather on the same cores, where what it leaves in caches is what it will leave.
            near.sort(key=lambda other: cluster.devices[other].cores != cores)
            # A task for absent devices alone runs here too, so that the others can be measured.
            placement.append(index if same & set(ids) else (near or here or [index])[0])
        under_test[alike] = DeviceUnderTest(
            index, tuple(placement), not any(is_remote[device] for device in placement)
        )
    return list(under_test.values())


def devices_beside(cluster: Cluster, device: int, placement: Sequence[int]) -> list[int]:
    """Return devices of one memory that can all work while those of `placement` do."""
    chosen: list[int] = []
    taken: set[int] = set()
    for index in _free(cluster, device, placement):
        if not taken & set(cluster.unit_ids[index]):
            taken |= set(cluster.unit_ids[index])
            chosen.append(index)
    return chosen


def turn_partner(cluster: Cluster, device: int, placement: Sequence[int]) -> int | None:
    """Return who does every second task in the stead of `device`, where it is measured what handing
    over takes: a device of its class, if one is free, else any other; None: there is none."""
    own = device_class(cluster, device)
    free = _free(cluster, device, placement)
    return min(free, key=lambda index: device_class(cluster, index) != own, default=None)


def _free(cluster: Cluster, device: int, placement: Sequence[int]) -> list[int]:
    """Devices of its memory and target that share nothing with those of `placement`; those of few
    cores come first, then those of small ids."""
    taken = {unit for at in (device, *placement) for unit in cluster.unit_ids[at]}
    ids = [
        index
        for index, other in enumerate(cluster.devices)
        if other.memory == cluster.devices[device].memory
        and other.target == cluster.devices[device].target
        and not taken & set(cluster.unit_ids[index])
    ]
    return sorted(ids, key=lambda index: len(cluster.unit_ids[index]))
