"""Describe the CPU of this machine as a cluster: one device per core and one of all cores.

A solver may then choose the number of cores per task together with the place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Memory

MAX_PARTS = 16
_CGROUP = Path("/sys/fs/cgroup")


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
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
        raise ClusterError(
            f"cores {list(chosen)}: expected different numbers out of the cores that this process "
            f"may run on: {allowed}"
        )
    parts = split_cores(chosen) if len(chosen) > 1 else []
    groups = [(f"cpu.{index}", part) for index, part in enumerate(parts)]
    groups.append(("cpu.all", chosen))
    devices = tuple(Device(name, "cpu", target, 0, 0, part) for name, part in groups)
    return Cluster("local-cpu", (Memory("ram", memory_bytes()),), devices, host=0)


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
    import psutil  # 20 ms, which planning for other machines need not spend

    total = int(psutil.virtual_memory().total)
    limit = _CGROUP / "memory.max"
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
    return total
