"""A cluster -> the same with the file of the compiled model as a memory that keeps weights.

Weights in that file are mapped, and come from there, through the system's page cache, to where they
are needed; the system takes their pages back where memory is short.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from heteroplace.machine.cpu import last_cache_bytes
from heteroplace.model.cluster import Cluster, Link, Memory

FILE_BYTES = 1 << 50
"""Capacity of a file: nothing that is planned for."""
_SIZES = (1 << 16, 1 << 20, 1 << 23)
"""Bytes of the copies that are timed."""
_MIN_SOURCE_BYTES, _MAX_SOURCE_BYTES = 1 << 26, 1 << 29
"""What they are taken from, so that it is in no cache: twice the last one, within these limits."""


def with_weights_file(cluster: Cluster) -> Cluster:
    """Return the cluster with a memory without devices that leads to the host memory.

    One that has such a memory, or no host memory, stays as it is. The link is as fast as this
    machine copies what is in its page cache, which takes some 0.1 s to measure.
    """
    host = cluster.host
    used = {device.memory for device in cluster.devices}
    if host is None or any(link.dst == host and link.src not in used for link in cluster.links):
        return cluster
    taken = {memory.name for memory in cluster.memories}
    name = next(name for name in ("file", "model file", "file of the model") if name not in taken)
    place = len(cluster.memories)
    target = cluster.memories[host].name
    points = _copy_times()
    speed = _SIZES[-1] * 10**9 // points[-1][1]
    link = Link(f"{name}->{target}", place, host, speed, 0, f"{name}->{target}", points)
    memory = Memory(name, FILE_BYTES, cluster.memory_hosts[host])
    return replace(cluster, memories=(*cluster.memories, memory), links=(*cluster.links, link))


def _copy_times() -> tuple[tuple[int, int], ...]:
    """(bytes, ns) of copies from memory that is in no cache."""
    most = min(_MAX_SOURCE_BYTES, max(_MIN_SOURCE_BYTES, 2 * last_cache_bytes()))
    source = np.ones(most, np.uint8)
    target = np.ones(_SIZES[-1], np.uint8)
    copy_times = []
    for size in _SIZES:
        times = []
        for begin in range(0, most - size + 1, max(size, most // 32)):
            start = time.perf_counter_ns()
            target[:size] = source[begin : begin + size]
            times.append(time.perf_counter_ns() - start)
        copy_times.append((size, max(1, int(np.median(times)))))
    return tuple(copy_times)
