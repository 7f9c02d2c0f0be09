"""Read and write cluster.json, the description of a machine. `cluster_fields` says what it holds.

What spans records (names that exist, a host that reaches all devices) is checked after the fields.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import UNSET

from heteroplace.argument_checks import check_path, check_type, did_you_mean
from heteroplace.errors import ClusterError
from heteroplace.files.faults import Faults, JsonPath
from heteroplace.files.fields.cluster_fields import (
    SCHEMA_VERSION,
    ClusterFile,
    DeviceEntry,
    LinkEntry,
    Transfers,
    is_size,
    kind_and_index,
    positive,
    target_text,
)
from heteroplace.files.fields.fields import or_none
from heteroplace.files.reader import read_json, read_struct, write_json
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.hosts import devices_apart
from heteroplace.model.units import (
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops_per_second,
)

_READY_MADE = Path(__file__).resolve().parent.parent / "clusters"
CLUSTER_ARGUMENT = (
    "a Cluster, the path of a cluster file (JSON), the name of a ready-made cluster, or 'local' "
    "where this machine may be used"
)
"""What a cluster may be given as."""


def load_cluster(path_or_name: str | os.PathLike[str]) -> Cluster:
    """Return the cluster in a file, or a ready-made one by its name.

    Parameters
    ----------
    path_or_name : str or path
        A path (anything that ends in ".json" or holds a path separator), or a name out of
        `ready_made_clusters()`, such as "moirai-inter-server".

    Raises
    ------
    ClusterError
        The file cannot be read, or has faults: all are named, with their JSON paths.
    """
    check_path("cluster", path_or_name, CLUSTER_ARGUMENT, ClusterError)
    text = os.fspath(path_or_name)
    if not isinstance(path_or_name, str) or text.endswith(".json") or Path(text).name != text:
        return cluster_from_json(read_json(text, ClusterError), source=text)
    names = ready_made_clusters()
    if text == "local":
        raise ClusterError(
            "'local' is this machine, which no file describes: call heteroplace.local_cluster() "
            "for it, or write a file of it by `heteroplace probe -o cluster.json`"
        )
    if text not in names:
        near = did_you_mean(text, [*names, "local"]) or "."
        raise ClusterError(
            f"no ready-made cluster is called {text!r}{near} "
            f"There are: {', '.join(names)}. The name of a file ends in .json"
        )
    path = _READY_MADE / f"{text.replace('-', '_')}.json"
    return cluster_from_json(read_json(path, ClusterError), source=str(path))


def ready_made_clusters() -> list[str]:
    """Return the names of the cluster files that come with the package, sorted."""
    return sorted(path.stem.replace("_", "-") for path in _READY_MADE.glob("*.json"))


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write `cluster` to `path` so that `load_cluster` returns an equal one; atomic.

    Raises
    ------
    ClusterError
        The file could not be read back, e.g. because a name is empty.
    """
    check_type("cluster", cluster, Cluster, "a Cluster, such as local_cluster()", ClusterError)
    check_path("path", path, "the path of the file to write", ClusterError)
    value = cluster_to_json(cluster)
    cluster_from_json(value, source=os.fspath(path))
    write_json(value, path)


def cluster_from_json(value: object, source: str = "cluster") -> Cluster:
    """Return the cluster that a parsed JSON value describes.

    Parameters
    ----------
    value : object
        What `json.load` returned.
    source : str
        What to call it in messages, e.g. the path of the file.

    Raises
    ------
    ClusterError
        All faults that the schema sees, else all between records, with their JSON paths.
    """
    file, faults = read_struct(value, ClusterFile, source, ClusterError)
    place, reserve = ("defaults", "memory_reserve"), file.defaults.memory_reserve
    memories = _Memories(faults, faults.parse(place, parse_bytes, reserve, 0))
    for i, memory in enumerate(file.memories):
        memories.add(memory.name, memory.size, ("memories", i, "size"), memory.host)
    devices = tuple(_device(entry, i, memories) for i, entry in enumerate(file.devices))
    _check_cores(devices, faults)
    _check_hosts(memories.found, devices, faults)
    links = _links(file, memories, devices)
    host = None if file.host is UNSET else memories.find(file.host, ("host",))
    faults.check()
    cluster = Cluster(file.name, tuple(memories.found), devices, links, host, file.congestion)
    _check_host_reaches_all(cluster, faults)
    faults.check()
    return cluster


def cluster_to_json(cluster: Cluster) -> dict[str, object]:
    """Return `cluster` as a value for `json.dump`; `cluster_from_json` gives an equal cluster."""
    value: dict[str, object] = {"schema_version": SCHEMA_VERSION, "name": cluster.name}
    if cluster.host is not None:
        value["host"] = cluster.memories[cluster.host].name
    if cluster.congestion != "channel":
        value["congestion"] = cluster.congestion
    value["memories"] = [
        {"name": memory.name, "size": memory.bytes} | ({"host": memory.host} if memory.host else {})
        for memory in cluster.memories
    ]
    value["devices"] = [_device_to_json(cluster, device) for device in cluster.devices]
    value["links"] = [_link_to_json(cluster, link) for link in cluster.links]
    return value


class _Memories:
    """The memories read so far, by name."""

    def __init__(self, faults: Faults, reserve_bytes: int) -> None:
        self.found: list[Memory] = []
        self.faults = faults
        self._ids: dict[str, int] = {}
        """Of each name the first memory."""
        self._reserve_bytes = reserve_bytes

    def add(self, name: str, amount: int | str, path: JsonPath, host: str = "") -> int:
        """Add a memory less the reserve and return its id."""
        size = self.faults.parse(path, positive(parse_bytes), amount, 0)
        left = size - self._reserve_bytes if size else 1
        if left <= 0:
            self.faults.add(
                path,
                f"memory {name!r} has {size} bytes, and $.defaults.memory_reserve takes "
                f"{self._reserve_bytes} of them; expected some to be left",
            )
        if name in self._ids:
            self.faults.add(path, f"a memory called {name!r} exists already")
        self._ids.setdefault(name, len(self.found))
        self.found.append(Memory(name, left, host))
        return len(self.found) - 1

    def find(self, name: str, path: JsonPath, hint: str = "") -> int:
        """Return the id of the memory called `name`, or note a fault that ends with `hint`."""
        if name in self._ids:
            return self._ids[name]
        nearest = did_you_mean(name, [memory.name for memory in self.found])
        self.faults.add(path, f"no memory is called {name!r}{nearest or hint}")
        return 0


def _device(entry: DeviceEntry, index: int, memories: _Memories) -> Device:
    faults, place = memories.faults, ("devices", index)
    device_kind, number = faults.parse((*place, "device"), kind_and_index, entry.device, ("", 0))
    if entry.cores and device_kind not in ("", "cpu"):
        faults.add((*place, "cores"), f"only cpu devices have cores, not {device_kind!r}")
    if entry.part and device_kind == "cpu":
        faults.add((*place, "part"), "only GPUs have parts; a cpu device has cores")
    path = (*place, "memory")
    if isinstance(entry.memory, str) and not is_size(entry.memory):
        memory = memories.find(entry.memory, path, ', and a size looks like "16 GiB"')
    else:
        # One of its own, called like the device.
        memory = memories.add(entry.name, entry.memory, path)

    def parse(key: str, read: Callable[[object], int]) -> int | None:
        value = getattr(entry, key)
        return None if value is UNSET else faults.parse((*place, key), read, value, 0)

    return Device(
        name=entry.name,
        kind=device_kind,
        target=faults.parse((*place, "target"), target_text, entry.target, ""),
        index=number,
        memory=memory,
        cores=entry.cores,
        host=entry.host,
        flops_per_second=parse("flops_per_second", positive(parse_flops_per_second)),
        memory_bytes_per_second=parse("memory_bandwidth", positive(parse_bandwidth)),
        copy_engines=or_none(entry.copy_engines),
        batch_sizes=tuple(sorted(entry.batch_sizes)),
        launch_ns=parse("launch", parse_duration) or 0,
        model=entry.model,
        part=entry.part,
    )


def _check_cores(devices: tuple[Device, ...], faults: Faults) -> None:
    """A CPU device without cores would be free to run beside one that has them all."""
    for host in dict.fromkeys(device.host for device in devices):
        cpus = [
            (index, bool(device.cores))
            for index, device in enumerate(devices)
            if device.kind == "cpu" and device.host == host
        ]
        if len({has_cores for _, has_cores in cpus}) > 1:
            for index, has_cores in cpus:
                if not has_cores:
                    faults.add(
                        ("devices", index),
                        'the key "cores" is missing, which other cpu devices of this host have',
                    )


def _check_hosts(memories: Sequence[Memory], devices: tuple[Device, ...], faults: Faults) -> None:
    """A memory is where its devices are, and on no host but theirs."""
    hosts = list(dict.fromkeys(device.host for device in devices))
    for index, memory in enumerate(memories):
        if memory.host and memory.host not in hosts:
            faults.add(
                ("memories", index, "host"),
                f"no device is on host {memory.host!r}"
                f"{did_you_mean(memory.host, hosts) or ', so nothing could run there'}",
            )
    for index, fault in devices_apart(memories, devices):
        faults.add(("devices", index, "host"), fault)


def _links(file: ClusterFile, memories: _Memories, devices: tuple[Device, ...]) -> tuple[Link, ...]:
    """All links; one with `bidirectional` makes two."""
    # A memory's own name wins over a device of that name.
    memory_of = {device.name: device.memory for device in devices}
    memory_of.update({memory.name: index for index, memory in enumerate(memories.found)})
    links: list[Link] = []
    for i, entry in enumerate(file.links):
        links += _both_ways(entry, ("links", i), memory_of, memories.faults)
    for name, count in Counter(link.name for link in links).items():
        if count > 1:
            fault = f"{count} links are called {name!r}; give them a 'name' each"
            memories.faults.add(("links",), fault)
    return tuple(links)


def _both_ways(
    entry: LinkEntry, path: JsonPath, memory_of: dict[str, int], faults: Faults
) -> list[Link]:
    """The link of an entry, and the one back if it has one.

    Parameters
    ----------
    entry
        As it is in the file.
    path
        Of the entry.
    memory_of
        Id of the memory by its name and by those of devices that use it.
    faults
        Takes what is wrong with the ends.
    """
    src = faults.find((*path, "src"), "memory or device", entry.src, memory_of)
    dst = faults.find((*path, "dst"), "memory or device", entry.dst, memory_of)
    if src == dst and entry.src in memory_of and entry.dst in memory_of:
        faults.add(
            path, f"{entry.src!r} and {entry.dst!r} are one memory; a link needs two different ones"
        )
    name = entry.name or f"{entry.src}->{entry.dst}"
    speed = faults.parse((*path, "bandwidth"), positive(parse_bandwidth), entry.bandwidth, 1)
    figures = (speed, faults.parse((*path, "latency"), parse_duration, entry.latency, 0))
    points = _points_of(entry, path, figures[1], faults)
    links = [Link(name, src, dst, *figures, entry.channel or name, points)]
    if entry.bidirectional:
        back = f"{name}.reverse" if entry.name is not UNSET else f"{entry.dst}->{entry.src}"
        # A channel that is named is one for both directions (half duplex).
        links.append(Link(back, dst, src, *figures, entry.channel or back, points))
    return links


def _points_of(
    entry: LinkEntry, path: JsonPath, latency_ns: int, faults: Faults
) -> tuple[tuple[int, int], ...]:
    """The timed transfers of an entry, as `Link.measured` has them."""
    if entry.measured and entry.transfer_times:
        faults.add(
            (*path, "measured"), "the times are in 'transfer_times' already; remove one of the two"
        )
    whole_times = _transfers(entry.transfer_times, (*path, "transfer_times"), faults)
    for size, time_ns in whole_times:
        if time_ns < latency_ns:
            faults.add(
                (*path, "transfer_times"),
                f"{size} B take {time_ns} ns, less than the link's latency of {latency_ns} "
                f"ns; give whole times, the latency included",
            )
    measured = _transfers(entry.measured, (*path, "measured"), faults)
    return tuple((size, max(0, ns - latency_ns)) for size, ns in whole_times) or measured


def _transfers(entries: Transfers, path: JsonPath, faults: Faults) -> tuple[tuple[int, int], ...]:
    """Return (bytes, ns) of timed transfers, ascending by bytes."""
    points = {}
    for index, (size, duration) in enumerate(entries):
        num_bytes = faults.parse((*path, index, 0), positive(parse_bytes), size, 0)
        points[num_bytes] = faults.parse((*path, index, 1), parse_duration, duration, 0)
    if len(points) < len(entries):
        faults.expected(path, "a list of sizes, each once, with a duration", entries)
    return tuple(sorted(points.items()))


def _check_host_reaches_all(cluster: Cluster, faults: Faults) -> None:
    """Inputs start in the host's memory and outputs must come back to it."""
    if cluster.host is None:
        return
    host = cluster.memories[cluster.host].name
    from_host = _reached(cluster.host, ((link.src, link.dst) for link in cluster.links))
    to_host = _reached(cluster.host, ((link.dst, link.src) for link in cluster.links))
    for index, device in enumerate(cluster.devices):
        if device.memory not in from_host:
            fault = f"device {device.name!r} cannot be reached from host memory {host!r}; add a "
            faults.add(("devices", index), f"{fault}link to it, or leave the device out")
        elif device.memory not in to_host:
            fault = f"host memory {host!r} cannot be reached from device {device.name!r}; add a "
            faults.add(("devices", index), f"{fault}link back, or leave the device out")


def _reached(start: int, steps: Iterable[tuple[int, int]]) -> set[int]:
    """The memories that can be reached from one by steps (from, to), itself among them."""
    following: dict[int, list[int]] = defaultdict(list)
    for src, dst in steps:
        following[src].append(dst)
    reached, stack = {start}, [start]
    while stack:
        new = [memory for memory in following[stack.pop()] if memory not in reached]
        reached.update(new)
        stack += new
    return reached


def _link_to_json(cluster: Cluster, link: Link) -> dict[str, object]:
    value: dict[str, object] = {
        "name": link.name,
        "src": cluster.memories[link.src].name,
        "dst": cluster.memories[link.dst].name,
        "bandwidth": f"{link.bytes_per_second} B/s",
        "latency": f"{link.latency_ns} ns",
        "channel": link.channel,
    }
    if link.measured:
        value["transfer_times"] = [
            [size, f"{link.latency_ns + time_ns} ns"] for size, time_ns in link.measured
        ]
    return value


def _device_to_json(cluster: Cluster, device: Device) -> dict[str, object]:
    value: dict[str, object] = {
        "name": device.name,
        "target": device.target,
        "device": f"{device.kind}:{device.index}",
        "memory": cluster.memories[device.memory].name,
    }
    bandwidth, sizes = device.memory_bytes_per_second, device.batch_sizes
    optional = {
        "cores": list(device.cores),
        "host": device.host,
        "flops_per_second": device.flops_per_second,
        "memory_bandwidth": None if bandwidth is None else f"{bandwidth} B/s",
        "copy_engines": device.copy_engines,
        "batch_sizes": [] if sizes == (1,) else list(sizes),
        "launch": f"{device.launch_ns} ns" if device.launch_ns else "",
        "model": device.model,
        "part": device.part or None,
    }
    return value | {key: each for key, each in optional.items() if each not in (None, "", [])}
