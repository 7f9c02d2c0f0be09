"""What is in this machine -> a cluster: its CPUs, one memory per NUMA node, its GPUs.

Of each node one device per core and one of all its cores, so that a solver may choose the number
of cores per task together with the place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heteroplace.errors import ClusterError
from heteroplace.machine.core_kinds import with_core_kinds
from heteroplace.machine.cpu import CpuInfo, NumaNode, read_cpus
from heteroplace.machine.gpu import GpuInfo
from heteroplace.model.cluster import Cluster, Device, Link, Memory

MAX_PARTS = 16
ESTIMATED_LATENCY_NS = 20_000
"""Of links that are not measured: a worker's wake-up, as copies run on workers of their own."""
ESTIMATED_CORE_LATENCY_NS = 1_000
"""The same where a core that runs kernels copies by itself: nobody is woken."""
ESTIMATED_NODE_BYTES_PER_SECOND = 10_000_000_000
"""Between NUMA nodes, where nothing is measured: what one core copies from DRAM."""


def local_cpu_cluster(target: str, cores: Sequence[int] | None = None) -> Cluster:
    """Return this machine's CPU as devices "cpu.0", "cpu.1", ... and "cpu.all" of one memory.

    Parameters
    ----------
    target : str
        TVM target string of the CPU.
    cores : sequence of int, optional
        The cores to use; by default all that this process may run on. Up to `MAX_PARTS` cores
        each is a device; of more, as many groups of neighbours of equal size (or one less) are
        devices. A single core is only "cpu.all".

    Returns
    -------
    Cluster
        Its memory "ram" is the host's.

    Raises
    ------
    ClusterError
        `cores` is empty, has repeats, or holds a core that this process may not run on.
    """
    allowed = sorted(os.sched_getaffinity(0))
    chosen = tuple(allowed if cores is None else cores)
    check_cores(chosen, allowed)
    parts = split_cores(chosen) if len(chosen) > 1 else []
    groups = [(f"cpu.{index}", part) for index, part in enumerate(parts)]
    groups.append(("cpu.all", chosen))
    devices = with_core_kinds([Device(name, "cpu", target, 0, 0, part) for name, part in groups])
    return Cluster("local-cpu", (Memory("ram", memory_bytes()),), devices, host=0)


def machine_cluster(
    cpu: CpuInfo,
    gpus: Sequence[GpuInfo],
    target: str,
    cores: Sequence[int] | None = None,
    root: Path = Path("/"),
) -> Cluster:
    """Return a whole machine as a cluster, with estimated links.

    One NUMA node is as in `local_cpu_cluster`. Of several, each is a memory "ram.K" with the
    devices "cpu.N" (numbered over all nodes) and "cpu.nodeK"; the first memory is the host's, and
    without GPUs the cores copy between them (`copy_engines` 0). A GPU is a memory and a device
    "gpuN".

    Parameters
    ----------
    cpu : CpuInfo
    gpus : sequence of GpuInfo
    target : str
        TVM target string of the CPU.
    cores : sequence of int, optional
        The logical processors to use; by default one of each physical core, as two of one core
        slow each other down.
    root : path
        Folder that holds `proc` and `sys`.

    Raises
    ------
    ClusterError
        `cores` is empty, has repeats, or holds one that may not be used; a GPU's link is of a kind
        whose speed is unknown.
    """
    chosen = tuple(cpu.first_threads if cores is None else cores)
    check_cores(chosen, [thread.number for thread in cpu.threads])
    nodes = [node for node in cpu.nodes if set(node.threads) & set(chosen)]
    memories = [
        Memory("ram" if len(nodes) == 1 else f"ram.{node.number}", size)
        for node, size in zip(nodes, _node_bytes(cpu, nodes), strict=True)
    ]
    devices: list[Device] = []
    for index, node in enumerate(nodes):
        own = [core for core in chosen if core in node.threads]
        parts = split_cores(own, max(1, MAX_PARTS // len(nodes))) if len(own) > 1 else []
        for part in parts:
            devices.append(Device(f"cpu.{len(devices) - index}", "cpu", target, 0, index, part))
        whole = "cpu.all" if len(nodes) == 1 else f"cpu.node{node.number}"
        devices.append(Device(whole, "cpu", target, 0, index, tuple(own)))
    if len(nodes) > 1 and not gpus:
        # All cores run kernels: a worker that only copies would take one of them away, at a moment
        # of its own. GPUs have engines for copies, which no core takes part in.
        devices = [replace(device, copy_engines=0) for device in devices]
    named = with_core_kinds([replace(device, model=cpu.model) for device in devices], root)
    return with_gpus(Cluster("local", tuple(memories), named, host=0), gpus)


def with_gpus(cpu: Cluster, gpus: Sequence[GpuInfo]) -> Cluster:
    """Return the cluster of a machine's CPUs with its GPUs, and with estimated links.

    Raises
    ------
    ClusterError
        A GPU's link is of a kind whose speed is unknown.
    """
    memories, devices = list(cpu.memories), list(cpu.devices)
    for gpu in gpus:
        name, memory = f"gpu{gpu.index}", len(memories)
        memories.append(Memory(name, gpu.memory_bytes))
        devices.append(Device(name, "cuda", gpu.target, gpu.index, memory, model=gpu.name))
    is_by_cores = any(device.copy_engines == 0 for device in cpu.devices)
    latency_ns = ESTIMATED_CORE_LATENCY_NS if is_by_cores else ESTIMATED_LATENCY_NS
    links = _estimated_links(memories, len(cpu.memories), gpus, latency_ns)
    return replace(cpu, name="local", memories=tuple(memories), devices=tuple(devices), links=links)


def check_cores(chosen: Sequence[int], allowed: Sequence[int]) -> None:
    """Raise ClusterError unless `chosen` are different cores out of `allowed`, at least one."""
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
        raise ClusterError(
            f"cores {list(chosen)}: expected different numbers out of the cores that this process "
            f"may run on: {list(allowed)}"
        )


def split_cores(cores: Sequence[int], max_parts: int = MAX_PARTS) -> list[tuple[int, ...]]:
    """Return at most `max_parts` groups of neighbouring cores whose sizes differ by at most 1.

    >>> split_cores([0, 1, 2, 3, 4], max_parts=2)
    [(0, 1, 2), (3, 4)]
    """
    num_parts = min(max_parts, len(cores))
    size, rest = divmod(len(cores), num_parts)
    groups, start = [], 0
    for part in range(num_parts):
        end = start + size + (1 if part < rest else 0)
        groups.append(tuple(cores[start:end]))
        start = end
    return groups


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container if that is limited to less.

    Not what is free at the moment: a cluster must be the same today and tomorrow, or costs and
    plans made for it could not be used again.
    """
    return read_cpus().memory_bytes


def _node_bytes(cpu: CpuInfo, nodes: Sequence[NumaNode]) -> list[int]:
    """Memory of each node; a container's limit is shared out in proportion."""
    if len(nodes) == 1 and len(cpu.nodes) == 1:
        return [cpu.memory_bytes]
    total = sum(node.bytes for node in nodes)
    if total <= cpu.memory_bytes:
        return [node.bytes for node in nodes]
    return [node.bytes * cpu.memory_bytes // total for node in nodes]


def _estimated_links(
    memories: Sequence[Memory], num_ram: int, gpus: Sequence[GpuInfo], latency_ns: int
) -> tuple[Link, ...]:
    """A link for each ordered pair of memories: what the slots and NVLinks can carry at best."""
    links = []
    for src, dst in ordered_pairs(len(memories)):
        speed = _estimated_speed(src - num_ram, dst - num_ram, gpus)
        name = f"{memories[src].name}->{memories[dst].name}"
        links.append(Link(name, src, dst, speed, latency_ns, name))
    return tuple(links)


def _estimated_speed(src: int, dst: int, gpus: Sequence[GpuInfo]) -> int:
    """Bytes per second between two GPUs by position, or host memories (negative)."""
    ends = [gpus[end] for end in (src, dst) if end >= 0]
    if not ends:
        return ESTIMATED_NODE_BYTES_PER_SECOND
    if len(ends) == 2 and ends[1].index in ends[0].nvlink_peers:
        return min(gpu.nvlink_bytes_per_second for gpu in ends)
    return min(gpu.pcie_bytes_per_second for gpu in ends)


def ordered_pairs(count: int) -> list[tuple[int, int]]:
    """Return all pairs of different numbers below `count`, a pair beside its reverse.

    >>> ordered_pairs(3)
    [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    """
    pairs = []
    for low in range(count):
        for high in range(low + 1, count):
            pairs += [(low, high), (high, low)]
    return pairs
