"""The machine of DistIR's experiments, as far as its paper tells: 16 devices, all connected.

Speeds are guessed, and fitted to nothing: 1e14 flop/s and 8e11 B/s for each device, 1.2e11 B/s
between any two, 10 us to launch a kernel and for each member of an all-reduce. Devices compute,
copy or exchange, one at a time, as DistIR's do (section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import CollectiveCosts

GIB = 2**30


@dataclass(frozen=True)
class MachineFigures:
    """What the modelled times depend on."""

    flops_per_second: int = 10**14
    memory_bytes_per_second: int = 8 * 10**11
    link_bytes_per_second: int = 12 * 10**10
    launch_ns: int = 10_000
    exchange_ns: int = 10_000
    """Of an all-reduce, for each of its members."""
    memory_bytes: int = 32 * GIB
    """"32 GB" of a V100 are GiB: with 32e9 bytes a published winner would not fit."""


def machine_cluster(figures: MachineFigures, num_devices: int) -> Cluster:
    """Return so many equal devices, each with a memory, and a link each way between any two."""
    ids = range(num_devices)
    memories = tuple(Memory(f"memory{index}", figures.memory_bytes) for index in ids)
    devices = tuple(
        Device(
            f"gpu{index}",
            "gpu",
            "",
            index,
            index,
            flops_per_second=figures.flops_per_second,
            memory_bytes_per_second=figures.memory_bytes_per_second,
            copy_engines=0,
            launch_ns=figures.launch_ns,
        )
        for index in ids
    )
    links = []
    for src in ids:
        for dst in ids:
            if src != dst:
                name = f"{src}-{dst}"
                links.append(Link(name, src, dst, figures.link_bytes_per_second, 0, name))
    return Cluster(f"{num_devices} devices", memories, devices, tuple(links))


def machine_collectives(figures: MachineFigures, num_devices: int) -> CollectiveCosts:
    """Return what all-reduces over 2, 3, ... devices take: a time per member, and a ring."""
    fits = []
    for count in range(2, num_devices + 1):
        per_byte_ns = 2 * (count - 1) / count * 1e9 / figures.link_bytes_per_second
        fits.append(("all_reduce", count, per_byte_ns, float(figures.exchange_ns * count)))
    return CollectiveCosts(tuple(fits))
