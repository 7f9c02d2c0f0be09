"""A cluster and what shall be other in it -> the changed cluster, and where its devices come from.

Changes are made in the JSON form and read back, so that what is made is checked as any file is.
A device is added and dropped with its twins, which are the same cores or GPU with other kernels
(`model.implementations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from heteroplace.argument_checks import did_you_mean
from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import cluster_from_json, cluster_to_json
from heteroplace.model.cluster import Cluster
from heteroplace.model.implementations import maker_of, twin_name
from heteroplace.model.units import MAX_INTEGER, format_bytes, parse_bytes

Entry = dict[str, Any]
_PLACE = ("host", "device", "cores", "part")
"""What says of a device which unit it occupies."""


@dataclass(frozen=True)
class Changes:
    """What shall be other in a cluster."""

    add_device: Mapping[str, str]
    """Name of a new device -> name of the one that it is like."""
    drop_device: Sequence[str]
    scale_link: Mapping[str, float]
    """Name or pattern of links or channels -> by how much their bandwidth grows."""
    memory: Mapping[str, str | int]
    """Name of a memory, or of a device for its own -> size."""


@dataclass(frozen=True)
class Changed:
    """A changed cluster."""

    cluster: Cluster
    like: tuple[int, ...]
    """For each of its devices the id of the one in the cluster before, whose costs it has."""
    said: tuple[str, ...]
    """What was done, a line for each change."""
    added: tuple[tuple[str, str], ...] = ()
    """Names of each device that is added and of the one that it is like, in this order."""


def change(cluster: Cluster, changes: Changes) -> Changed:
    """Make the changes: devices are added, then dropped, then links and memories changed.

    Raises
    ------
    ClusterError
        A name is not known or is taken, or a number is no size or factor.
    """
    value: Any = cluster_to_json(cluster)
    like = {device.name: index for index, device in enumerate(cluster.devices)}
    said = []
    added: list[tuple[str, str]] = []
    for name, model in changes.add_device.items():
        said.append(_add(value, name, model, like, added))
    for name in changes.drop_device:
        said.append(_drop(value, name))
    for pattern, factor in changes.scale_link.items():
        said.append(_scale(value, pattern, factor))
    for name, size in changes.memory.items():
        said.append(_resize(value, name, size))
    changed_cluster = cluster_from_json(value, "the changed cluster")
    of_devices = tuple(like[device.name] for device in changed_cluster.devices)
    return Changed(changed_cluster, of_devices, tuple(said), tuple(added))


def _find(value: Any, kind: str, name: str, option: str) -> Entry:
    entries = {entry["name"]: entry for entry in value[kind]}
    if name not in entries:
        near = did_you_mean(name, entries) or f"; it has: {', '.join(entries)}"
        one = {"devices": "device", "memories": "memory"}[kind]
        raise ClusterError(f"{option}: cluster {value['name']!r} has no {one} {name!r}{near}")
    named_entry: Entry = entries[name]
    return named_entry


def _base(value: Any, entry: Entry) -> Entry | None:
    """The device whose twin this one is, as `model.implementations.base_of`; None: it is none."""
    maker = maker_of(entry["name"])
    if maker is None:
        return None
    for base in value["devices"]:
        is_there = all(base.get(key) == entry.get(key) for key in _PLACE)
        if is_there and twin_name(base["name"], maker) == entry["name"]:
            base_entry: Entry = base
            return base_entry
    return None


def _twins(value: Any, device: Entry) -> list[Entry]:
    return [entry for entry in value["devices"] if _base(value, entry) is device]


def _add(
    value: Any, name: str, model: str, like: dict[str, int], added: list[tuple[str, str]]
) -> str:
    source = _find(value, "devices", model, "add_device")
    twins = _twins(value, source)
    names = [name, *(_twin_name(name, twin) for twin in twins)]
    for new in names:
        if new in like:
            raise ClusterError(f"add_device: there is a device {new!r} already; give another name")
    new_entry = {**source, "name": name}
    peers = [entry for entry in value["devices"] if entry.get("host") == source.get("host")]
    sharing = [e for e in peers if e["memory"] == source["memory"] and _base(value, e) is None]
    where = ""
    if source.get("cores"):
        first = 1 + max(core for entry in peers for core in entry.get("cores", ()))
        new_entry["cores"] = list(range(first, first + len(source["cores"])))
        where = f", on core {', '.join(map(str, new_entry['cores']))}"
    else:
        kind, _, _ = source["device"].partition(":")
        numbers = [int(entry["device"].rpartition(":")[2]) for entry in peers
                   if entry["device"].partition(":")[0] == kind]  # fmt: skip
        new_entry["device"] = f"{kind}:{1 + max(numbers)}"
        new_entry.pop("part", None)
    if len(sharing) == 1 and source["memory"] != value.get("host"):
        new_entry["memory"] = _copy_memory(value, source["memory"], name)
        where = ", with a memory and links of its own like those"
    value["devices"] += [new_entry, *(_twin_of(new_entry, source, twin) for twin in twins)]
    for new, old in zip(names, [source, *twins], strict=True):
        like[new] = like[old["name"]]
        added.append((new, old["name"]))
    others = f"; {', '.join(names[1:])} too" if twins else ""
    return f"device {name} added, like {model}{where}{others}"


def _twin_name(device: str, twin: Entry) -> str:
    maker = maker_of(twin["name"])
    assert maker is not None
    return twin_name(device, maker)


def _twin_of(new_entry: Entry, source: Entry, twin: Entry) -> Entry:
    """The twin of a new device that is like this one of the device that the new one is like."""
    rest = {key: value for key, value in twin.items() if key not in _PLACE}
    if twin["memory"] == source["memory"]:
        rest["memory"] = new_entry["memory"]
    place = {key: new_entry[key] for key in _PLACE if key in new_entry}
    return {**rest, **place, "name": _twin_name(new_entry["name"], twin)}


def _copy_memory(value: Any, memory: str, name: str) -> str:
    """Add a memory like another one, with the same links; return its name."""
    new_entry = {**_find(value, "memories", memory, "add_device"), "name": name}
    if any(entry["name"] == name for entry in value["memories"]):
        raise ClusterError(f"add_device: there is a memory {name!r} already; give another name")
    value["memories"].append(new_entry)
    for link in [entry for entry in value["links"] if memory in (entry["src"], entry["dst"])]:
        ends = {end: name if link[end] == memory else link[end] for end in ("src", "dst")}
        others = [entry for entry in value["links"] if entry["channel"] == link["channel"]]
        is_own = all(memory in (entry["src"], entry["dst"]) for entry in others)
        channel = f"{link['channel']} of {name}" if is_own else link["channel"]
        value["links"].append(
            {**link, **ends, "name": f"{ends['src']}->{ends['dst']}", "channel": channel}
        )
    return name


def _drop(value: Any, name: str) -> str:
    device = _find(value, "devices", name, "drop_device")
    gone = [name, *(twin["name"] for twin in _twins(value, device))]
    remaining = [entry for entry in value["devices"] if entry["name"] not in gone]
    if not remaining:
        raise ClusterError(f"drop_device: {name!r} is the last device of the cluster; leave one")
    value["devices"] = remaining
    said = f"device {', '.join(gone)} dropped"
    memory = device["memory"]
    is_used = any(entry["memory"] == memory for entry in remaining)
    if is_used or memory == value.get("host"):
        return said
    value["memories"] = [entry for entry in value["memories"] if entry["name"] != memory]
    value["links"] = [e for e in value["links"] if memory not in (e["src"], e["dst"])]
    return f"{said}, with its memory and links"


def _scale(value: Any, pattern: str, factor: float) -> str:
    if not 0 < factor < float("inf"):
        raise ClusterError(f"scale_link: {pattern}={factor}; expected a factor above 0, like 0.5")
    links = [
        entry
        for entry in value["links"]
        if any(fnmatchcase(entry[key], pattern) for key in ("name", "channel"))
    ]
    if not links:
        device_names = dict.fromkeys(
            [e["name"] for e in value["links"]] + [e["channel"] for e in value["links"]]
        )
        near = did_you_mean(pattern, device_names) or (
            f"; it has: {', '.join(device_names)}" if device_names else "; it has no links at all"
        )
        raise ClusterError(
            f"scale_link: cluster {value['name']!r} has no link or channel {pattern!r}{near}"
        )
    for entry in links:
        speed = max(1.0, _in_range(_number(entry["bandwidth"]) * factor, pattern, factor))
        entry["bandwidth"] = f"{int(speed)} B/s"
        latency_ns = _number(entry["latency"])
        entry["transfer_times"] = [
            [size, f"{latency_ns + _scaled_ns(_number(time) - latency_ns, pattern, factor)} ns"]
            for size, time in entry.get("transfer_times", ())
        ]
    names = ", ".join(entry["name"] for entry in links)
    return f"bandwidth of {names} times {factor:g}"


def _scaled_ns(time_ns: int, pattern: str, factor: float) -> int:
    """The time of the bytes of a transfer, latency left out, over a scaled link."""
    return round(_in_range(time_ns / factor, pattern, factor))


def _in_range(value: float, pattern: str, factor: float) -> float:
    """A scaled number; ClusterError: no cluster can have it."""
    if not value < MAX_INTEGER:
        raise ClusterError(
            f"scale_link: {pattern}={factor:g}: the bandwidth in B/s, or a measured time in ns, "
            f"would be {value:.3g}, and is at most {MAX_INTEGER}; give a factor nearer to 1"
        )
    return value


def _number(quantity: str) -> int:
    """The number of a quantity as `cluster_to_json` writes it."""
    return int(quantity.split()[0])


def _resize(value: Any, name: str, size: str | int) -> str:
    owners = {entry["name"]: entry["memory"] for entry in value["devices"]}
    names = {entry["name"] for entry in value["memories"]}
    if name not in names and name not in owners:
        near = did_you_mean(name, [*names, *owners]) or f"; it has: {', '.join(sorted(names))}"
        raise ClusterError(
            f"memory: cluster {value['name']!r} has no memory or device {name!r}{near}"
        )
    memory = _find(value, "memories", name if name in names else owners[name], "memory")
    try:
        number = parse_bytes(int(size) if isinstance(size, str) and size.isdecimal() else size)
    except ValueError as err:
        raise ClusterError(f"memory: {name}={size}; expected {err}") from err
    was, memory["size"] = int(memory["size"]), number
    return f"memory {memory['name']}: {format_bytes(number)} instead of {format_bytes(was)}"
