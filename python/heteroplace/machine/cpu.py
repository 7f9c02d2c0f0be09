"""What the system says of its processors and memory -> values: sockets, cores, nodes, limits.

Everything is read from files of Linux below a root folder, so that the files of another machine
can be read too. Nothing is measured.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heteroplace.control_groups import cpu_model, memory_limit, quota_cores, read_text
from heteroplace.errors import ClusterError

_DEFAULT_CACHE_BYTES = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class HardwareThread:
    """One logical processor, which the system numbers and a cluster file calls a core."""

    number: int
    socket: int
    node: int
    """NUMA node whose memory is near."""
    siblings: tuple[int, ...]
    """The logical processors of its physical core, itself among them, ascending."""


@dataclass(frozen=True)
class NumaNode:
    """A memory and the processors that are near it."""

    number: int
    bytes: int
    """Built in."""
    threads: tuple[int, ...]
    """Its logical processors that may be used, ascending; not empty."""


@dataclass(frozen=True)
class CpuInfo:
    """The processors that this process may use."""

    model: str
    """As the processor names itself; "" if it does not."""
    threads: tuple[HardwareThread, ...]
    """Ascending by number."""
    nodes: tuple[NumaNode, ...]
    """Those with usable processors, ascending by number."""
    memory_bytes: int
    """Of all nodes, or what the container is limited to."""
    is_limited: bool
    """`memory_bytes` is a container's limit."""
    quota_cores: float | None
    """How many cores the container's processor time suffices for; None: no limit."""
    governor: str
    """Frequency governor of the first processor; "" if there is none (most virtual machines)."""

    @property
    def num_sockets(self) -> int:
        """Number of sockets with usable processors."""
        return len({thread.socket for thread in self.threads})

    @property
    def first_threads(self) -> tuple[int, ...]:
        """One logical processor of each physical core: the first that may be used."""
        usable = {thread.number for thread in self.threads}
        chosen = {min(usable.intersection(thread.siblings)) for thread in self.threads}
        return tuple(sorted(chosen))

    def warnings(self) -> list[str]:
        """Say what makes plans for these processors slower, or less predictable."""
        texts = []
        if self.quota_cores is not None and self.quota_cores < len(self.first_threads):
            texts.append(
                f"the container may use {self.quota_cores:g} cores' worth of time, and has "
                f"{len(self.first_threads)} cores: runs on more at once are throttled. Name fewer "
                f"(--cores), or raise the limit"
            )
        if self.governor == "powersave":
            texts.append("the frequency governor is 'powersave': clocks vary, and so do times")
        return texts


def read_cpus(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> CpuInfo:
    """Read what processors and memory there are.

    Parameters
    ----------
    root : path
        Folder that holds `proc` and `sys`.
    allowed : iterable of int, optional
        The logical processors that may be used; by default those of this process.

    Raises
    ------
    ClusterError
        None of `allowed` is online, or the memory's size is not told.
    """
    chosen = os.sched_getaffinity(0) if allowed is None else set(allowed)
    cpu_folder = root / "sys/devices/system/cpu"
    online = parse_list(read_text(cpu_folder / "online")) or sorted(chosen)
    numbers = [number for number in online if number in chosen]
    if not numbers:
        raise ClusterError(
            f"none of the cores {sorted(chosen)} is online; {cpu_folder / 'online'} says {online}"
        )
    nodes, node_of = _read_nodes(root, numbers)
    threads = tuple(_read_thread(cpu_folder, number, node_of) for number in numbers)
    limit = memory_limit(root)
    built_in = sum(node.bytes for node in nodes)
    return CpuInfo(
        model=cpu_model(read_text(root / "proc/cpuinfo")),
        threads=threads,
        nodes=nodes,
        memory_bytes=built_in if limit is None else min(built_in, limit),
        is_limited=limit is not None and limit < built_in,
        quota_cores=quota_cores(root),
        governor=read_text(cpu_folder / f"cpu{numbers[0]}/cpufreq/scaling_governor"),
    )


def last_cache_bytes(root: Path = Path("/")) -> int:
    """Return the size of the largest cache of a core of this machine; 32 MiB where unknown."""
    sizes = []
    for path in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")):
        text = read_text(path)
        if text[-1:] in _UNITS and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * _UNITS[text[-1]])
    return max(sizes, default=_DEFAULT_CACHE_BYTES)


def parse_list(text: str) -> list[int]:
    """Return the numbers in a list of the kernel's form.

    >>> parse_list("0-2,8")
    [0, 1, 2, 8]
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def with_siblings(cores: Iterable[int], root: Path = Path("/")) -> set[int]:
    """Return logical processors and all others of the same physical cores."""
    siblings = set(cores)
    for core in sorted(siblings):
        siblings |= _siblings(root / "sys/devices/system/cpu", core)
    return siblings


def _siblings(cpu_folder: Path, number: int) -> set[int]:
    """The logical processors of a physical core, of which it is one."""
    listed = read_text(cpu_folder / f"cpu{number}/topology/thread_siblings_list")
    return {number, *parse_list(listed)}


def _read_thread(cpu_folder: Path, number: int, node_of: dict[int, int]) -> HardwareThread:
    topology = cpu_folder / f"cpu{number}/topology"
    # -1 is what some ARM and virtual machines say of the only socket.
    socket = max(0, int(read_text(topology / "physical_package_id") or 0))
    return HardwareThread(
        number, socket, node_of[number], tuple(sorted(_siblings(cpu_folder, number)))
    )


def _read_nodes(root: Path, numbers: Sequence[int]) -> tuple[tuple[NumaNode, ...], dict[int, int]]:
    """The nodes that have some of the processors `numbers`, and the node of each processor."""
    nodes = []
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        near = [number for number in parse_list(read_text(folder / "cpulist")) if number in numbers]
        if near:
            size = _kib(read_text(folder / "meminfo"), "MemTotal") or 0
            nodes.append(NumaNode(int(folder.name[4:]), size, tuple(sorted(near))))
    nodes = sorted(nodes, key=lambda node: node.number)
    if len(nodes) < 2 or any(node.bytes == 0 for node in nodes):
        # One memory: its size is that of the whole machine. A node's own figure leaves out memory
        # that was added while the machine ran.
        total = _kib(read_text(root / "proc/meminfo"), "MemTotal")
        if not total:
            raise ClusterError(f"{root / 'proc/meminfo'} does not tell the memory's size")
        number = nodes[0].number if nodes else 0
        nodes = [NumaNode(number, total, tuple(sorted(numbers)))]
    return tuple(nodes), {number: node.number for node in nodes for number in node.threads}


def _kib(text: str, key: str) -> int | None:
    match = re.search(rf"\b{key}:\s+(\d+) kB", text)
    return None if match is None else 1024 * int(match[1])
