"""A cluster -> the same with each GPU as several devices that run at once, its parts.

Each part has a queue, and an equal share of the GPU's memory as a memory of its own. The links of
the GPU become links of each part on the same channels, as the wires are the same; parts of one GPU
are linked by copies on the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Link, Memory

ESTIMATED_CARD_BYTES_PER_SECOND = 200_000_000_000
"""Of a copy within a GPU, where nothing is measured: what cards of the last ten years reach."""
ESTIMATED_CARD_LATENCY_NS = 5_000
"""Of the same: a launch, and a wait of one stream for another."""


def split_gpus(cluster: Cluster, num_parts: int) -> Cluster:
    """Return `cluster` with `num_parts` devices in place of each GPU: "gpu0.0", "gpu0.1", ...

    Costs of a task on a part are those on the whole GPU, which it has alone if the others rest:
    parts gain where single kernels do not fill the GPU.

    Raises
    ------
    ClusterError
        `num_parts` is below 1; or a GPU shares its memory with another device, or is a part.
    """
    if num_parts < 1:
        raise ClusterError(f"a GPU in {num_parts} parts; expected 1 or more")
    split = {device.memory: device for device in cluster.devices if device.kind == "cuda"}
    for device in cluster.devices:
        if device.memory in split and (split[device.memory] != device or device.part):
            raise ClusterError(
                f"device {device.name!r} shares its memory with another one, or is a part of a "
                f"GPU already; describe the whole GPU as one device to split it"
            )
    if num_parts == 1:
        return cluster
    memories: list[Memory] = []
    ids: list[list[int]] = []
    for memory, whole in enumerate(cluster.memories):
        first, count = len(memories), num_parts if memory in split else 1
        ids.append(list(range(first, first + count)))
        names = [f"{whole.name}.{part}" for part in range(count)] if count > 1 else [whole.name]
        memories += [replace(whole, name=name, bytes=whole.bytes // count) for name in names]
    devices: list[Device] = []
    for device in cluster.devices:
        if device.memory not in split:
            devices.append(replace(device, memory=ids[device.memory][0]))
            continue
        for part, memory in enumerate(ids[device.memory]):
            name = f"{device.name}.{part}"
            devices.append(replace(device, name=name, memory=memory, part=part))
    links = list(_links(cluster, memories, ids))
    return replace(
        cluster,
        memories=tuple(memories),
        devices=tuple(devices),
        links=tuple(links),
        host=None if cluster.host is None else ids[cluster.host][0],
    )


def _links(cluster: Cluster, memories: list[Memory], ids: list[list[int]]) -> Iterator[Link]:
    """Those of the whole GPUs, for each part, and those between the parts of a GPU."""
    for link in cluster.links:
        is_split = len(ids[link.src]) * len(ids[link.dst]) > 1
        for src in ids[link.src]:
            for dst in ids[link.dst]:
                name = f"{memories[src].name}->{memories[dst].name}" if is_split else link.name
                yield replace(link, name=name, src=src, dst=dst)
    for parts in ids:
        for src in parts:
            for dst in parts:
                if src == dst:
                    continue
                name = f"{memories[src].name}->{memories[dst].name}"
                speed = (ESTIMATED_CARD_BYTES_PER_SECOND, ESTIMATED_CARD_LATENCY_NS)
                yield Link(name, src, dst, *speed, name)
