"""Several machines, or parts of one, as the hosts of one cluster: a rank runs each.

Links between hosts are estimates until `heteroplace probe` has measured them, run as a rank on
each host.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heteroplace.errors import ClusterError
from heteroplace.machine.probe import local_cpu_cluster, split_cores
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.run.transport import Ranks
from heteroplace.tvm_bridge import llvm_cpu_target

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one on each machine, whatever the machine is called."""
ESTIMATED_LATENCY_NS = 50_000
"""Of a message over a network that is not measured."""
ESTIMATED_BYTES_PER_SECOND = 1_000_000_000
"""Of such a network."""


def hosts_of_cores(names: Sequence[str], cores: Sequence[int] | None = None) -> Cluster:
    """Return this machine as several hosts, each of one core and a memory of its own.

    For trying plans over hosts where there is one machine: `mpiexec -n 2` runs two of them here.

    Parameters
    ----------
    names
        Of the hosts; the first one feeds the model.
    cores
        The core of each host. None: those that this process may run on, in turns; where there are
        fewer cores than hosts, some hosts share one.

    Raises
    ------
    ClusterError
        A name is used twice or there is none, there is not a core for each host, or this process
        may not run on one.

    Examples
    --------
    >>> cluster = hosts_of_cores(["a", "b"])
    >>> cluster.hosts, [memory.name for memory in cluster.memories]
    (('a', 'b'), ['ram.a', 'ram.b'])
    """
    allowed = sorted(os.sched_getaffinity(0))
    if cores is None:
        cores = [allowed[index % len(allowed)] for index in range(len(names))]
    if len(cores) != len(names):
        raise ClusterError(
            f"{len(names)} hosts need as many cores, got {list(cores)}; name one for each"
        )
    target = llvm_cpu_target()
    parts = [local_cpu_cluster(target, [core]) for core in cores]
    return join_hosts("hosts", names, [part_of(part, len(names)) for part in parts])


def part_of(cluster: Cluster, count: int) -> Cluster:
    """Return the cluster with a `count`-th of each memory, for one of so many hosts that share."""
    memories = tuple(
        replace(memory, bytes=max(1, memory.bytes // count)) for memory in cluster.memories
    )
    return replace(cluster, memories=memories)


def join_hosts(name: str, hosts: Sequence[str], parts: Sequence[Cluster]) -> Cluster:
    """Return one cluster of several machines; the first one's host memory feeds the model.

    Memories, devices and links are called after their machine: "ram" of host "a" is "ram.a". Every
    two memories of CPUs on different hosts have a link each way, an estimate; what is sent from
    one host to one other shares a channel.

    Parameters
    ----------
    name
        Of the cluster.
    hosts
        A name for each machine.
    parts
        The machines, whose devices have no host yet.

    Raises
    ------
    ClusterError
        A host has no name, or one that another has too.
    """
    _check_names(hosts)
    memories: list[Memory] = []
    devices: list[Device] = []
    links: list[Link] = []
    for host, part in zip(hosts, parts, strict=True):
        first = len(memories)
        memories += [
            replace(memory, name=f"{memory.name}.{host}", host=host) for memory in part.memories
        ]
        devices += [
            replace(device, name=f"{device.name}.{host}", host=host, memory=first + device.memory)
            for device in part.devices
        ]
        links += [
            replace(
                link,
                name=f"{link.name}.{host}",
                channel=f"{link.channel}.{host}",
                src=first + link.src,
                dst=first + link.dst,
            )
            for link in part.links
        ]
    links += _estimated_links(memories, devices)
    return Cluster(name, tuple(memories), tuple(devices), tuple(links), host=parts[0].host)


@dataclass(frozen=True)
class MachineShare:
    """What a rank may use of the machine that it runs on."""

    machine: str
    """Tells machines apart, whatever they are called: one boot of one kernel."""
    name: str
    """What the machine is called."""
    cores: tuple[int, ...]
    """The logical processors that the rank would use if it were alone."""


def host_names(shares: Sequence[MachineShare]) -> tuple[str, ...]:
    """Return a name for each rank's host: its machine's, with a number where ranks share one.

    >>> a, b = MachineShare("1", "box", (0, 1)), MachineShare("2", "node", (0, 1))
    >>> host_names([a, b, a])
    ('box.0', 'node', 'box.1')
    """
    uses = Counter(share.name for share in shares)
    seen: Counter[str] = Counter()
    names = []
    for share in shares:
        is_shared = uses[share.name] > 1
        names.append(f"{share.name}.{seen[share.name]}" if is_shared else share.name)
        seen[share.name] += 1
    return tuple(names)


def share_cores(shares: Sequence[MachineShare]) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each rank, which no other rank of its machine has.

    Ranks that may use the same ones get equal parts. Of ranks that have only some in common each
    gets one, and what is left goes to who has the fewest of those that may use it.

    Raises
    ------
    ClusterError
        There are fewer cores than ranks that share them.

    >>> share_cores([MachineShare("1", "box", (0, 1, 2))] * 2)
    ((0, 1), (2,))
    >>> share_cores([MachineShare("1", "box", (1, 2)), MachineShare("1", "box", (0, 1))])
    ((1, 2), (0,))
    """
    cores_of_ranks: dict[int, tuple[int, ...]] = {}
    for rank in range(len(shares)):
        if rank in cores_of_ranks:
            continue
        alike = _sharing_with(rank, shares)
        owners = _one_core_each(alike, shares)
        if all(set(shares[other].cores) == set(shares[rank].cores) for other in alike):
            parts = split_cores(shares[rank].cores, len(alike))
        else:
            parts = _deal_rest(alike, shares, owners)
        cores_of_ranks.update(zip(alike, parts, strict=True))
    return tuple(cores_of_ranks[rank] for rank in range(len(shares)))


def _sharing_with(rank: int, shares: Sequence[MachineShare]) -> list[int]:
    """The ranks of its machine that may use a core of its own, or of those, in order."""
    ranks, cores = {rank}, set(shares[rank].cores)
    for _ in shares:
        for other, share in enumerate(shares):
            if share.machine == shares[rank].machine and cores & set(share.cores):
                ranks.add(other)
                cores |= set(share.cores)
    return sorted(ranks)


def _one_core_each(ranks: Sequence[int], shares: Sequence[MachineShare]) -> dict[int, int]:
    """A rank for some of the cores, so that each rank has one: a matching, by augmenting paths."""
    owners: dict[int, int] = {}

    def take(rank: int, seen: set[int]) -> bool:
        for core in shares[rank].cores:
            if core in seen:
                continue
            seen.add(core)
            if core not in owners or take(owners[core], seen):
                owners[core] = rank
                return True
        return False

    for rank in ranks:
        seen: set[int] = set()
        if take(rank, seen):
            continue
        # Hall's theorem: those that may use no others are more than there are cores.
        count = sum(set(shares[other].cores) <= seen for other in ranks)
        raise ClusterError(
            f"{count} ranks on {shares[rank].name!r} share the cores {sorted(seen)}, and "
            f"each needs one of its own; start fewer, or let the launcher spread them"
        )
    return owners


def _deal_rest(
    ranks: Sequence[int], shares: Sequence[MachineShare], owners: dict[int, int]
) -> list[tuple[int, ...]]:
    """The cores of each rank: those that it owns, and of the rest a fair part."""
    dealt: dict[int, list[int]] = {rank: [] for rank in ranks}
    for core, rank in owners.items():
        dealt[rank].append(core)
    for core in sorted({core for rank in ranks for core in shares[rank].cores}):
        if core not in owners:
            able = [rank for rank in ranks if core in shares[rank].cores]
            dealt[min(able, key=lambda rank: len(dealt[rank]))].append(core)
    return [tuple(sorted(dealt[rank])) for rank in ranks]


def _check_names(hosts: Sequence[str]) -> None:
    if not hosts or "" in hosts or len(set(hosts)) < len(hosts):
        raise ClusterError(f"hosts {list(hosts)}: expected different names, one at least")


def _estimated_links(memories: Sequence[Memory], devices: Sequence[Device]) -> list[Link]:
    of_cpus = sorted({device.memory for device in devices if device.kind == "cpu"})
    links = []
    for src in of_cpus:
        for dst in of_cpus:
            near, far = memories[src].host, memories[dst].host
            if near != far:
                links.append(
                    Link(
                        f"{memories[src].name}->{memories[dst].name}",
                        src,
                        dst,
                        ESTIMATED_BYTES_PER_SECOND,
                        ESTIMATED_LATENCY_NS,
                        f"{near}->{far}",
                    )
                )
    return links


def join_machines(
    ranks: Ranks, cores: Sequence[int], probe: Callable[[Sequence[int]], Cluster]
) -> Cluster:
    """Return the machines of all ranks as one cluster, whose links are estimates; all ranks.

    Parameters
    ----------
    cores
        What this rank would use if it were alone on its machine.
    probe
        Makes the cluster of this machine, of some cores.

    Raises
    ------
    ClusterError
        As `share_cores`.
    """
    own = MachineShare(_BOOT.read_text().strip(), socket.gethostname(), tuple(cores))
    shares = ranks.gather(own)
    num_here = sum(share.machine == own.machine for share in shares)
    part = part_of(probe(share_cores(shares)[ranks.rank]), num_here)
    return join_hosts("hosts", host_names(shares), ranks.gather(part))
