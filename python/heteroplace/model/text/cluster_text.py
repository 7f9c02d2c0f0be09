"""The golden text of a cluster, and back: exact quantities, in the words of cluster.json.

    cluster box host ram congestion port
    memory ram 32 GiB
    device cpu.0 cpu:0 memory ram target "llvm -mcpu=native" cores 0 launch 2 us
    link up ram => gpu 12 GB/s 10 us channel pcie timed 1 KiB in 10300 ns, 1 MiB in 105 us

What has its default is left out: channels as congestion, no cores, batches of one item.
"""

from __future__ import annotations

from collections.abc import Callable

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.text.words import WORD, Lines, ids, join, quote, unquote
from heteroplace.model.units import (
    format_exactly,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops_per_second,
)

_SIZE = r"\d+ (?:[KMGT]i)?B"
_BANDWIDTH = r"\d+ [kMGTP]?B/s"
_SPEED = r"\d+ [kMGTP]?FLOP/s"
_TIME = r"\d+ (?:ns|us|ms|s)"
_NUMBERS = r"\d+(?:,\d+)*"
_MEASURED = rf"{_SIZE} in {_TIME}"


def print_cluster(cluster: Cluster) -> str:
    """Return the text of `cluster`: memories, devices and links in order of id."""
    head = f"cluster {quote(cluster.name)}"
    if cluster.host is not None:
        head += f" host {quote(cluster.memories[cluster.host].name)}"
    if cluster.congestion != "channel":
        head += f" congestion {quote(cluster.congestion)}"
    lines = [head]
    for memory in cluster.memories:
        host = f" host {quote(memory.host)}" if memory.host else ""
        lines.append(f"memory {quote(memory.name)} {format_exactly(memory.bytes, 'B')}{host}")
    lines += [_print_device(cluster, device) for device in cluster.devices]
    lines += [_print_link(cluster, link) for link in cluster.links]
    return "\n".join(lines) + "\n"


def _print_device(cluster: Cluster, device: Device) -> str:
    text = (
        f"device {quote(device.name)} {quote(device.kind)}:{device.index} "
        f"memory {quote(cluster.memories[device.memory].name)} target {quote(device.target)}"
    )
    if device.cores:
        text += f" cores {join(map(str, device.cores))}"
    if device.host:
        text += f" host {quote(device.host)}"
    if device.flops_per_second is not None:
        text += f" flops_per_second {format_exactly(device.flops_per_second, 'FLOP/s')}"
    if device.memory_bytes_per_second is not None:
        text += f" memory_bandwidth {format_exactly(device.memory_bytes_per_second, 'B/s')}"
    if device.copy_engines is not None:
        text += f" copy_engines {device.copy_engines}"
    if device.batch_sizes != (1,):
        text += f" batch_sizes {join(map(str, device.batch_sizes))}"
    if device.launch_ns:
        text += f" launch {format_exactly(device.launch_ns, 'ns')}"
    if device.model:
        text += f" model {quote(device.model)}"
    return text + (f" part {device.part}" if device.part else "")


def _print_link(cluster: Cluster, link: Link) -> str:
    src, dst = cluster.memories[link.src], cluster.memories[link.dst]
    text = (
        f"link {quote(link.name)} {quote(src.name)} => {quote(dst.name)} "
        f"{format_exactly(link.bytes_per_second, 'B/s')} {format_exactly(link.latency_ns, 'ns')} "
        f"channel {quote(link.channel)}"
    )
    points = [
        f"{format_exactly(num_bytes, 'B')} in {format_exactly(link.latency_ns + time_ns, 'ns')}"
        for num_bytes, time_ns in link.measured
    ]
    return text + (f" timed {', '.join(points)}" if points else "")


def parse_cluster(text: str) -> Cluster:
    """Return the cluster that `print_cluster` printed.

    Raises
    ------
    ClusterError
        A line has another form, names a memory that does not exist, or breaks an invariant.
    """
    lines = Lines(text, ClusterError)
    name, host, congestion = lines.match(
        rf"cluster ({WORD})(?: host ({WORD}))?(?: congestion ({WORD}))?"
    )
    memories = []
    while lines.next_is("memory"):
        memory, size, place = lines.match(rf"memory ({WORD}) ({_SIZE})(?: host ({WORD}))?")
        memories.append(Memory(unquote(memory), parse_bytes(size), unquote(place or "")))
    memory_id = ids((memory.name for memory in memories), "memory", ClusterError)
    devices = []
    while lines.next_is("device"):
        devices.append(_parse_device(lines, memory_id))
    links = []
    while lines.next_is("link"):
        links.append(_parse_link(lines, memory_id))
    lines.end()
    return Cluster(
        unquote(name),
        tuple(memories),
        tuple(devices),
        tuple(links),
        memory_id(unquote(host)) if host else None,
        unquote(congestion or "channel"),
    )


def _parse_device(lines: Lines, memory_id: Callable[[str], int]) -> Device:
    name, kind, index, memory, target, *optional = lines.match(
        rf"device ({WORD}) ({WORD}):(\d+) memory ({WORD}) target ({WORD})"
        rf"(?: cores ({_NUMBERS}))?(?: host ({WORD}))?"
        rf"(?: flops_per_second ({_SPEED}))?(?: memory_bandwidth ({_BANDWIDTH}))?"
        rf"(?: copy_engines (\d+))?(?: batch_sizes ({_NUMBERS}))?"
        rf"(?: launch ({_TIME}))?(?: model ({WORD}))?(?: part (\d+))?"
    )
    cores, host, flops, bandwidth, copy_engines, batch_sizes, launch, model, part = optional
    return Device(
        unquote(name),
        unquote(kind),
        unquote(target),
        int(index),
        memory_id(unquote(memory)),
        _numbers(cores) if cores else (),
        unquote(host or ""),
        parse_flops_per_second(flops) if flops else None,
        parse_bandwidth(bandwidth) if bandwidth else None,
        int(copy_engines) if copy_engines else None,
        _numbers(batch_sizes) if batch_sizes else (1,),
        parse_duration(launch) if launch else 0,
        unquote(model or ""),
        int(part or 0),
    )


def _parse_link(lines: Lines, memory_id: Callable[[str], int]) -> Link:
    # Older texts have "measured", with times that lack the latency.
    name, src, dst, bandwidth, latency, channel, word, times = lines.match(
        rf"link ({WORD}) ({WORD}) => ({WORD}) ({_BANDWIDTH}) ({_TIME}) channel ({WORD})"
        rf"(?: (timed|measured) ({_MEASURED}(?:, {_MEASURED})*))?"
    )
    points = [point.split(" in ") for point in times.split(", ")] if times else []
    included_ns = parse_duration(latency) if word == "timed" else 0
    return Link(
        unquote(name),
        memory_id(unquote(src)),
        memory_id(unquote(dst)),
        parse_bandwidth(bandwidth),
        parse_duration(latency),
        unquote(channel),
        tuple((parse_bytes(size), parse_duration(time) - included_ns) for size, time in points),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
