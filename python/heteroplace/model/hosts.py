"""Memories and devices of a cluster -> the hosts they sit in: computers, by name.

A plan over several hosts is run by one process for each, a rank: rank i runs `Cluster.hosts[i]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heteroplace.model.cluster import Cluster, Device, Memory


def memory_hosts(memories: Sequence[Memory], devices: Sequence[Device]) -> tuple[str, ...]:
    """Return the host of each memory.

    The one that it names, else that of its devices, else the only one of all devices, else "".
    """
    of_devices: dict[int, str] = {}
    for device in devices:
        of_devices.setdefault(device.memory, device.host)
    everywhere = {device.host for device in devices}
    rest = next(iter(everywhere)) if len(everywhere) == 1 else ""
    return tuple(
        memory.host or of_devices.get(index, rest) for index, memory in enumerate(memories)
    )


def devices_apart(
    memories: Sequence[Memory], devices: Sequence[Device]
) -> Iterator[tuple[int, str]]:
    """Yield for each device that is on another host than its memory its id and what is wrong."""
    hosts = memory_hosts(memories, devices)
    for index, device in enumerate(devices):
        if device.memory in range(len(memories)) and device.host != hosts[device.memory]:
            memory = memories[device.memory].name
            yield (
                index,
                f"device {device.name!r} is on host {device.host!r}, and its memory {memory!r} is "
                f"on host {hosts[device.memory]!r}; a device addresses memory of its own host",
            )


def are_of_one_cpu(cluster: Cluster, *memories: int) -> bool:
    """Say whether CPUs of one host, and nothing else, address these memories: each can read all."""
    kinds = {device.kind for device in cluster.devices if device.memory in memories}
    return kinds == {"cpu"} and len({cluster.memory_hosts[memory] for memory in memories}) == 1


def feeding_rank(cluster: Cluster) -> int:
    """Return the position in `hosts` of the host that feeds a model and reads its outputs.

    It is that of the memory `cluster.host`, which must not be None.
    """
    assert cluster.host is not None
    return cluster.hosts.index(cluster.memory_hosts[cluster.host])


def on_host(cluster: Cluster, host: str) -> Cluster:
    """Return the part of a cluster that is on one host, as a process there sees it: without a name.

    Devices, memories and links keep their order. Models are fed from the cluster's memory `host` if
    it is among them, else from that of the first CPU device; None: there is neither.
    """
    memories = [memory for memory, at in enumerate(cluster.memory_hosts) if at == host]
    position = {memory: index for index, memory in enumerate(memories)}
    devices = [device for device in cluster.devices if device.host == host]
    links = [link for link in cluster.links if link.src in position and link.dst in position]
    cpus = [device.memory for device in devices if device.kind == "cpu"]
    feeder = cluster.host if cluster.host in position else next(iter(cpus), None)
    return replace(
        cluster,
        memories=tuple(replace(cluster.memories[memory], host="") for memory in memories),
        devices=tuple(replace(each, host="", memory=position[each.memory]) for each in devices),
        links=tuple(
            replace(link, src=position[link.src], dst=position[link.dst]) for link in links
        ),
        host=None if feeder is None else position[feeder],
    )


def with_devices(cluster: Cluster, ids: Sequence[int]) -> Cluster:
    """Return the cluster with only some of its devices.

    A memory forgets the name of a host on which no device is left.
    """
    devices = tuple(cluster.devices[index] for index in ids)
    left = {device.host for device in devices}
    memories = tuple(
        memory if memory.host in left else replace(memory, host="") for memory in cluster.memories
    )
    return replace(cluster, memories=memories, devices=devices)
