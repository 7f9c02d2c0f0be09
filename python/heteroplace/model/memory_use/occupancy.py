"""What the copies of a cluster occupy: channels, ports, copy engines, and devices without them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heteroplace.model.cluster import Cluster, Device, Link

Key = tuple[str, str]
"""Kind and name of what serves one step at a time."""


class Occupancy:
    """By the rules of a cluster's `congestion` and its devices' `copy_engines`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._of_memory: list[list[Device]] = [[] for _ in cluster.memories]
        for device in cluster.devices:
            self._of_memory[device.memory].append(device)

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The units of all devices, then what only copies occupy."""
        units = [("unit", unit) for unit in self._cluster.units]
        return tuple(dict.fromkeys([*units, *(key for keys in self._of_link for key in keys)]))

    @cached_property
    def of_links(self) -> tuple[tuple[int, ...], ...]:
        """For each link what a copy over it occupies, as positions in `keys`."""
        ids = {key: index for index, key in enumerate(self.keys)}
        return tuple(tuple(ids[key] for key in dict.fromkeys(keys)) for keys in self._of_link)

    def copying_device(self, src: int, dst: int) -> int | None:
        """As `Cluster.copying_device`."""
        cluster, copier = self._cluster, None
        if cluster.memory_hosts[src] != cluster.memory_hosts[dst]:
            return None
        for device in (*self._of_memory[dst], *self._of_memory[src]):
            if device.kind != "cpu":
                return None
            if copier is None and device.copy_engines == 0:
                copier = device
        return None if copier is None else cluster.devices.index(copier)

    @cached_property
    def _of_link(self) -> list[list[Key]]:
        return [self._occupied(link) for link in self._cluster.links]

    def _occupied(self, link: Link) -> list[Key]:
        memories = self._cluster.memories
        src, dst = memories[link.src].name, memories[link.dst].name
        of_mode: dict[str, list[Key]] = {
            "none": [],
            "channel": [("channel", link.channel)],
            "port": [("out of", src), ("into", dst)],
            "bus": [("bus", "")],
        }
        keys = of_mode[self._cluster.congestion]
        copying = self.copying_device(link.src, link.dst)
        for memory, side in ((link.src, "read"), (link.dst, "write")):
            name = memories[memory].name
            for device in self._of_memory[memory]:
                if device.copy_engines == 0:
                    if copying is None or device == self._cluster.devices[copying]:
                        keys.extend(("unit", unit) for unit in device.units)
                elif device.copy_engines == 1:
                    keys.append(("copy engine of", name))
                elif device.copy_engines == 2:
                    keys.append((f"{side} engine of", name))
        return keys
