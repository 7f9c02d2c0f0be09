"""Random clusters of two to four hosts, each of one or two memories, one of them maybe a GPU's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random

from relay_models import CUDA, TARGET

from heteroplace.model.cluster import Cluster, Device, Link, Memory

AMPLE = 2**33
NAMES = ("", "b", "c", "d")
FAR_CORE = 100_000
"""The first core that no machine has: its queue becomes a fake device."""


def random_hosts(
    random: Random, *, has_gpus: bool, core_of: Callable[[int], int] = lambda number: number
) -> Cluster:
    """The cluster; no two hosts have a core of one number, so that one machine can be all of them.

    Hosts are linked each to each, in a line, or to the first; links lead from any memory of a host
    to any of the other one, and share channels or do not.
    """
    names = random.sample(NAMES, random.randint(2, 4))
    memories: list[Memory] = []
    devices: list[Device] = []
    links: list[Link] = []
    of_host: list[list[int]] = []
    cores = map(core_of, count())
    for name in names:
        near = len(memories)
        of_host.append([near])
        memories.append(Memory(f"ram{near}", AMPLE, name if random.random() < 0.5 else ""))
        ids = [next(cores) for _ in range(random.randint(1, 2))]
        devices += [_cpu(name, near, (core,)) for core in ids]
        if len(ids) == 2 and ids[1] < FAR_CORE and random.random() < 0.5:
            devices.append(_cpu(name, near, tuple(ids)))
        if random.random() < 0.5:
            of_host[-1].append(near + 1)
            memories.append(Memory(f"far{near}", AMPLE))
            if has_gpus and random.random() < 0.5:
                devices.append(Device(f"gpu.{name}", "cuda", CUDA, 0, near + 1, host=name))
            else:
                devices.append(_cpu(name, near + 1, (next(cores),)))
            links += _both_ways(random, near, near + 1)
    for one, other in _pairs(random, len(names)):
        links += _both_ways(random, random.choice(of_host[one]), random.choice(of_host[other]))
    random.shuffle(devices)
    feeder = random.choice([ids[0] for ids in of_host])
    return Cluster("hosts", tuple(memories), tuple(devices), tuple(links), feeder)


def _cpu(host: str, memory: int, cores: tuple[int, ...]) -> Device:
    name = "+".join(map(str, cores))
    return Device(f"cpu.{name}", "cpu", TARGET, 0, memory, cores, host=host)


def _pairs(random: Random, num_hosts: int) -> Iterator[tuple[int, int]]:
    kind = random.choice(("all", "line", "star"))
    for one in range(num_hosts):
        for other in range(one + 1, num_hosts):
            if kind == "all" or (other == one + 1 if kind == "line" else one == 0):
                yield one, other


def _both_ways(random: Random, one: int, other: int) -> list[Link]:
    channel = random.choice(("shared", f"{one}-{other}", ""))
    return [
        Link(
            f"{src}-{dst}", src, dst, random.choice((10**8, 10**10)), 100, channel or f"{src}-{dst}"
        )
        for src, dst in ((one, other), (other, one))
    ]


def alone(cluster: Cluster) -> Cluster:
    """The same machine without hosts: what one process runs."""
    return replace(
        cluster,
        memories=tuple(replace(memory, host="") for memory in cluster.memories),
        devices=tuple(replace(device, host="") for device in cluster.devices),
    )
