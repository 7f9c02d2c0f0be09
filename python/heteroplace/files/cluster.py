"""Read and write cluster.json, the description of a machine. The format is in model/README.md.

The reader collects every fault of a file, each with its JSON path, before it raises.
"""

from __future__ import annotations

import os
from pathlib import Path

from heteroplace.errors import ClusterError
from heteroplace.files.cluster_fields import (
    a_congestion_mode,
    a_kind_and_index,
    a_list_of_devices,
    a_memory_name,
    a_number_of_copy_engines,
    a_size_or_name,
    a_target,
    batch_sizes,
    core_numbers,
    measured_transfers,
    positive,
)
from heteroplace.files.reader import (
    Faults,
    ObjectReader,
    a_boolean,
    a_name,
    a_text,
    did_you_mean,
    read_json,
    schema_version,
    write_json,
)
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.units import (
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops_per_second,
)

SCHEMA_VERSION = 1


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
    text = os.fspath(path_or_name)
    if not isinstance(path_or_name, str) or text.endswith(".json") or Path(text).name != text:
        return cluster_from_json(read_json(text, ClusterError), source=text)
    known = ready_made_clusters()
    if text not in known:
        raise ClusterError(
            f"no ready-made cluster is called {text!r}{did_you_mean(text, known) or '.'} "
            f"There are: {', '.join(known)}. The name of a file ends in .json"
        )
    path = _ready_made_folder() / f"{text.replace('-', '_')}.json"
    return cluster_from_json(read_json(path, ClusterError), source=str(path))


def ready_made_clusters() -> list[str]:
    """Return the names of the cluster files that come with the package, sorted."""
    return sorted(path.stem.replace("_", "-") for path in _ready_made_folder().glob("*.json"))


def save_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Write `cluster` to `path` so that `load_cluster` returns an equal one; atomic.

    Raises
    ------
    ClusterError
        The file could not be read back, e.g. because a name is empty.
    """
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
        All faults at once, with their JSON paths.
    """
    faults = Faults(source, ClusterError)
    root = ObjectReader(value, "$", faults)
    schema_version(root, SCHEMA_VERSION)
    name = root.required("name", a_name, "")
    root.optional("description", a_text, "")
    reserve = _read_reserve(root)
    memories = _Memories(faults, reserve)
    for reader in root.objects("memories"):
        memories.read(reader)
    root.required("devices", a_list_of_devices, None)
    devices = [_read_device(reader, memories) for reader in root.objects("devices")]
    _check_cores(devices, faults)
    links = _read_links(root, memories, devices)
    host_name = root.optional("host", a_name, "")
    host = memories.find(host_name, "$.host") if host_name else None
    congestion = root.optional("congestion", a_congestion_mode, "channel")
    root.finish()
    faults.check()
    cluster = Cluster(name, tuple(memories.found), tuple(devices), tuple(links), host, congestion)
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
    value["memories"] = [{"name": memory.name, "size": memory.bytes} for memory in cluster.memories]
    value["devices"] = [_device_to_json(cluster, device) for device in cluster.devices]
    value["links"] = [_link_to_json(cluster, link) for link in cluster.links]
    return value


class _Memories:
    """The memories read so far, by name."""

    def __init__(self, faults: Faults, reserve_bytes: int) -> None:
        self.found: list[Memory] = []
        self._faults = faults
        self._reserve_bytes = reserve_bytes

    def read(self, reader: ObjectReader) -> None:
        name = reader.required("name", a_memory_name, "")
        size = reader.required("size", positive(parse_bytes), None)
        reader.finish()
        self.add(name, size, f"{reader.path}.size")

    def add(self, name: str, size: int | None, path: str) -> int:
        """Add a memory less the reserve and return its id; a size of None was faulty."""
        left = 1 if size is None else size - self._reserve_bytes
        if left <= 0:
            self._faults.add(
                path,
                f"memory {name!r} has {size} bytes, and $.defaults.memory_reserve takes "
                f"{self._reserve_bytes} of them; expected some to be left",
            )
        if name and any(memory.name == name for memory in self.found):
            self._faults.add(path, f"a memory called {name!r} exists already")
        self.found.append(Memory(name, left))
        return len(self.found) - 1

    def find(self, name: str, path: str, hint: str = "") -> int:
        """Return the id of the memory called `name`, or note a fault that ends with `hint`."""
        names = [memory.name for memory in self.found]
        if name in names:
            return names.index(name)
        nearest = did_you_mean(name, names)
        self._faults.add(path, f"no memory is called {name!r}{nearest or hint}")
        return 0


def _read_reserve(root: ObjectReader) -> int:
    if not root.has("defaults"):
        return 0
    defaults = root.entry("defaults")
    reserve = defaults.optional("memory_reserve", parse_bytes, 0)
    defaults.finish()
    return reserve


def _read_device(reader: ObjectReader, memories: _Memories) -> Device:
    name = reader.required("name", a_name, "")
    target = reader.required("target", a_target, "")
    kind, index = reader.required("device", a_kind_and_index, ("", 0))
    memory = _read_device_memory(reader, name, memories)
    cores = reader.optional("cores", core_numbers, ())
    device = Device(
        name=name,
        kind=kind,
        target=target,
        index=index,
        memory=memory,
        cores=cores,
        host=reader.optional("host", a_text, ""),
        flops_per_second=reader.optional(
            "flops_per_second", positive(parse_flops_per_second), None
        ),
        memory_bytes_per_second=reader.optional(
            "memory_bandwidth", positive(parse_bandwidth), None
        ),
        copy_engines=reader.optional("copy_engines", a_number_of_copy_engines, None),
        batch_sizes=reader.optional("batch_sizes", batch_sizes, (1,)),
        launch_ns=reader.optional("launch", parse_duration, 0),
        model=reader.optional("model", a_text, ""),
    )
    if cores and kind not in ("", "cpu"):
        reader.faults.add(f"{reader.path}.cores", f"only cpu devices have cores, not {kind!r}")
    reader.finish()
    return device


def _read_device_memory(reader: ObjectReader, name: str, memories: _Memories) -> int:
    """The id of the device's memory: a named one, or one of its own, called like the device."""
    memory = reader.required("memory", a_size_or_name, None)
    path = f"{reader.path}.memory"
    if isinstance(memory, str):
        return memories.find(memory, path, ', and a size looks like "16 GiB"')
    return memories.add(name, memory, path)


def _check_cores(devices: list[Device], faults: Faults) -> None:
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
                        f"$.devices[{index}]",
                        'the key "cores" is missing, which other cpu devices of this host have',
                    )


def _read_links(root: ObjectReader, memories: _Memories, devices: list[Device]) -> list[Link]:
    """All links; one with `bidirectional` makes two."""
    # A memory's own name wins over a device of that name.
    memory_of = {device.name: device.memory for device in devices}
    memory_of.update({memory.name: index for index, memory in enumerate(memories.found)})
    links: list[Link] = []
    for reader in root.objects("links"):
        links.extend(_read_link(reader, memory_of))
    names = [link.name for link in links]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            root.faults.add(
                "$.links", f"{names.count(name)} links are called {name!r}; give them a 'name' each"
            )
    return links


def _read_link(reader: ObjectReader, memory_of: dict[str, int]) -> list[Link]:
    ends: list[int] = []
    names: list[str] = []
    for key in ("src", "dst"):
        name = reader.required(key, a_name, "")
        names.append(name)
        path = f"{reader.path}.{key}"
        ends.append(reader.faults.find(path, "memory or device", name, memory_of) if name else -1)
    src, dst = ends
    if src == dst and names[0] in memory_of and names[1] in memory_of:
        reader.faults.add(
            reader.path,
            f"{names[0]!r} and {names[1]!r} are one memory; a link needs two different ones",
        )
    bandwidth = reader.required("bandwidth", positive(parse_bandwidth), None) or 0
    latency = reader.required("latency", parse_duration, 0)
    name = reader.optional("name", a_name, f"{names[0]}->{names[1]}")
    channel = reader.optional("channel", a_name, name)
    both_ways = reader.optional("bidirectional", a_boolean, False)
    measured = reader.optional("measured", measured_transfers, ())
    links = [Link(name, src, dst, bandwidth, latency, channel, measured)]
    if both_ways:
        back = f"{name}.reverse" if reader.has("name") else f"{names[1]}->{names[0]}"
        # A channel that is named is one for both directions (half duplex).
        back_channel = channel if reader.has("channel") else back
        links.append(Link(back, dst, src, bandwidth, latency, back_channel, measured))
    reader.finish()
    return links


def _check_host_reaches_all(cluster: Cluster, faults: Faults) -> None:
    """Inputs start in the host's memory and outputs must come back to it."""
    if cluster.host is None:
        return
    host = cluster.memories[cluster.host].name
    for index, device in enumerate(cluster.devices):
        path = f"$.devices[{index}]"
        if not cluster.is_reachable(cluster.host, device.memory):
            faults.add(
                path,
                f"device {device.name!r} cannot be reached from host memory {host!r}; "
                f"add a link to it, or leave the device out",
            )
        elif not cluster.is_reachable(device.memory, cluster.host):
            faults.add(
                path,
                f"host memory {host!r} cannot be reached from device {device.name!r}; "
                f"add a link back, or leave the device out",
            )


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
        value["measured"] = [[size, f"{time_ns} ns"] for size, time_ns in link.measured]
    return value


def _device_to_json(cluster: Cluster, device: Device) -> dict[str, object]:
    value: dict[str, object] = {
        "name": device.name,
        "target": device.target,
        "device": f"{device.kind}:{device.index}",
        "memory": cluster.memories[device.memory].name,
    }
    if device.cores:
        value["cores"] = list(device.cores)
    if device.host:
        value["host"] = device.host
    if device.flops_per_second is not None:
        value["flops_per_second"] = device.flops_per_second
    if device.memory_bytes_per_second is not None:
        value["memory_bandwidth"] = f"{device.memory_bytes_per_second} B/s"
    if device.copy_engines is not None:
        value["copy_engines"] = device.copy_engines
    if device.batch_sizes != (1,):
        value["batch_sizes"] = list(device.batch_sizes)
    if device.launch_ns:
        value["launch"] = f"{device.launch_ns} ns"
    if device.model:
        value["model"] = device.model
    return value


def _ready_made_folder() -> Path:
    return Path(__file__).resolve().parent.parent / "clusters"
