"""Cluster + sizes -> mean transfer times, which stand for no two devices in particular.

The mean is over ordered pairs of different devices, as in HEFT (Topcuoglu et al. 2002). Over links
that were not measured transfers are linear in bytes, so their mean is one slope and one intercept
for a cluster; times of measured links (`Link.measured`) are found for each size.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from heteroplace.model.cluster import Cluster, Link

FloatArray = npt.NDArray[np.float64]


def mean_transfer_ns(cluster: Cluster, sizes: FloatArray) -> FloatArray:
    """Return the mean time of a transfer of each size, in ns, over pairs that reach each other.

    Devices of one memory count as pairs with no transfer time.
    """
    slopes: list[float] = []
    intercepts: list[int] = []
    measured: Counter[tuple[int, ...]] = Counter()
    for src_id, src in enumerate(cluster.devices):
        for dst_id, dst in enumerate(cluster.devices):
            if src_id == dst_id or not cluster.is_reachable(src.memory, dst.memory):
                continue
            route = cluster.route(src.memory, dst.memory)
            links = [cluster.links[link] for link in route]
            intercepts.append(sum(link.latency_ns for link in links))
            if any(link.measured for link in links):
                slopes.append(0.0)
                measured[route] += 1
            else:
                slopes.append(_ns_per_byte(links))
    count = max(1, len(slopes))
    mean: FloatArray = sum(intercepts) / count + sum(slopes) / count * sizes
    for route, times in measured.items():
        mean = mean + times / count * route_payload_ns(cluster, route, sizes)
    return mean


def mean_ns_per_byte(cluster: Cluster, memory: int, sizes: FloatArray) -> float:
    """Return what a byte takes on the routes that leave a memory, in the mean; 0: there is none.

    Over routes with measured links it is what the bytes of those sizes take together.
    """
    num_bytes = float(sizes.sum())
    times = []
    for dst in range(len(cluster.memories)):
        if dst == memory or not cluster.is_reachable(memory, dst):
            continue
        route = cluster.route(memory, dst)
        links = [cluster.links[link] for link in route]
        if num_bytes and any(link.measured for link in links):
            times.append(float(route_payload_ns(cluster, route, sizes).sum()) / num_bytes)
        else:
            times.append(_ns_per_byte(links))
    return sum(times) / len(times) if times else 0.0


def route_payload_ns(cluster: Cluster, route: tuple[int, ...], sizes: FloatArray) -> FloatArray:
    """Return what each size takes on the slowest link of a route, in ns, without latencies."""
    slowest = np.zeros_like(sizes)
    for link in route:
        slowest = np.maximum(slowest, _payload_ns(cluster.links[link], sizes))
    return slowest


def _payload_ns(link: Link, sizes: FloatArray) -> FloatArray:
    """`Link.payload_ns` of many sizes, not rounded."""
    points = np.array(((0, 0), *link.measured), dtype=np.float64)
    last_bytes, last_ns = points[-1]
    beyond = last_ns + (sizes - last_bytes) * (1e9 / link.bytes_per_second)
    return np.where(sizes > last_bytes, beyond, np.interp(sizes, points[:, 0], points[:, 1]))


def _ns_per_byte(links: list[Link]) -> float:
    """Of links that were not measured."""
    return 1e9 / min(link.bytes_per_second for link in links) if links else 0.0
