"""The machine a network is placed on: memories, devices and directed links.

Reading and writing `cluster.json` is `heteroplace.files.cluster_file`. Multi-hop routes follow
Moirai (section III-C): the bandwidth of a route is the smallest on it, not a sum of hop times.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from heteroplace.errors import ClusterError
from heteroplace.model.answers import answerer
from heteroplace.model.hosts import devices_apart, memory_hosts
from heteroplace.model.identity import DeviceIdentity
from heteroplace.model.memory_use.occupancy import Occupancy
from heteroplace.model.routes import Routes
from heteroplace.terminal import listed

CONGESTION_MODES = ("none", "channel", "port", "bus")
"""Two copies may not overlap: never; on the same channel (Moirai's prose); from the same sender or
to the same receiver (Moirai's model, Celeritas' send and receive tasks); at all."""

COPY_ENGINES = (None, 0, 1, 2)


@dataclass(frozen=True)
class Memory:
    """A space that some devices address directly; tensors live in memories, not on devices."""

    name: str
    bytes: int
    """Capacity in bytes that a plan may use."""
    host: str = ""
    """Computer it sits in; "": that of its devices (`Cluster.memory_hosts`)."""


@dataclass(frozen=True)
class Device:
    """A place that computes one task at a time.

    Two devices that share a unit (a core, a GPU, a part of a GPU) never run at once: a CPU may be
    one device per core and, beside them, one device of all cores. A GPU may be several devices,
    its parts, which run at once: each has a queue of its own, and a memory of its own or one with
    others.
    """

    name: str
    kind: str
    """What it is: "cpu" or "cuda" for devices that can be compiled for; any word for planning."""
    target: str
    """TVM target string its kernels are compiled for, e.g. "llvm -mcpu=cascadelake"."""
    index: int
    """Ordinal of its kind on its host, as in TVM's `cuda(1)`; 0 for CPU devices."""
    memory: int
    """Id of the memory it addresses."""
    cores: tuple[int, ...] = ()
    """Cores of the host that a CPU device runs on; empty for other kinds."""
    host: str = ""
    """Computer it sits in; "": it has no name, as the one that runs a plan alone."""
    flops_per_second: int | None = None
    """Peak speed, for estimates; None: unknown."""
    memory_bytes_per_second: int | None = None
    """Peak bandwidth of its memory, for estimates; None: unknown."""
    copy_engines: int | None = None
    """How many copies may touch its memory at once beside its tasks: 0: none, a copy also occupies
    the device (DistIR's synchronous send; of two CPUs of a host one does the copy, see
    `Cluster.copying_device`); 1: one, in or out; 2: one in and one out; None: only the links
    limit."""
    batch_sizes: tuple[int, ...] = (1,)
    """How many items it can run as one batch of a task (DiviML's B(k)), ascending."""
    launch_ns: int = 0
    """Fixed time to start one task, used by estimates."""
    model: str = ""
    """What is printed on the box. For people; estimates look up the peak speeds of known models."""
    part: int = 0
    """Which of several devices on one GPU: other parts run beside it; 0 for CPU devices."""

    @property
    def identity(self) -> DeviceIdentity:
        """What costs on it depend on."""
        return DeviceIdentity(
            self.name,
            self.kind,
            self.target,
            len(self.cores),
            self.model,
            "" if self.model else self.host,
            self.flops_per_second,
            self.memory_bytes_per_second,
            self.launch_ns,
        )

    @property
    def units(self) -> tuple[str, ...]:
        """What the device occupies while it runs, e.g. ("/core0", "/core1") or ("/cuda1",).

        Part 2 of a GPU is ("/cuda1.2",), and part 0 as the whole.
        """
        if self.cores:
            return tuple(f"{self.host}/core{core}" for core in self.cores)
        part = f".{self.part}" if self.part else ""
        return (f"{self.host}/{self.kind}{self.index}{part}",)


@dataclass(frozen=True)
class Link:
    """A directed connection from one memory to another."""

    name: str
    src: int
    """Id of the memory it reads."""
    dst: int
    """Id of the memory it writes."""
    bytes_per_second: int
    latency_ns: int
    channel: str
    """Links of one channel are never used at once (Moirai eq. 8)."""
    measured: tuple[tuple[int, int], ...] = ()
    """(bytes, ns without the latency) of transfers that were timed, ascending by bytes. Between two
    of them, and from nothing to the first, time is linear; beyond the last one `bytes_per_second`
    counts. Empty: it counts everywhere."""

    def payload_ns(self, num_bytes: int) -> int:
        """Return what `num_bytes` take beside the latency, rounded up to whole nanoseconds."""
        before = (0, 0)
        for point in self.measured:
            if num_bytes <= point[0]:
                rise, run = point[1] - before[1], point[0] - before[0]
                return before[1] - (before[0] - num_bytes) * rise // run
            before = point
        return before[1] - (before[0] - num_bytes) * 1_000_000_000 // self.bytes_per_second


@dataclass(frozen=True)
class Cluster:
    """Memories, devices and links of a machine (or of several). Ids are positions in the tuples.

    Invariants, checked on construction: at least one device; names are unique within each kind;
    ids are in range; sizes and bandwidths are positive; devices are where their memories are.
    """

    name: str
    memories: tuple[Memory, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    host: int | None = None
    """Id of the memory where inputs arrive and outputs are read. None (planning only): inputs are
    everywhere at time 0 and outputs stay where they are made."""
    congestion: str = "channel"
    """Which copies exclude each other, one of CONGESTION_MODES."""

    def __post_init__(self) -> None:
        faults = list(_faults(self))
        if faults:
            raise ClusterError(f"cluster {self.name!r}: {listed(faults, '; ')}")

    def __repr__(self) -> str:
        return str(answerer("cluster_repr")(self))

    def _repr_html_(self) -> str:
        """Return devices, memories and links as tables for a notebook."""
        return str(answerer("cluster_html")(self))

    @cached_property
    def identities(self) -> tuple[DeviceIdentity, ...]:
        """For each device what costs on it depend on."""
        return tuple(device.identity for device in self.devices)

    @cached_property
    def memory_hosts(self) -> tuple[str, ...]:
        """For each memory the host it sits in."""
        return memory_hosts(self.memories, self.devices)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """All hosts, in order of first mention by devices, then by memories."""
        of_devices = (device.host for device in self.devices)
        return tuple(dict.fromkeys((*of_devices, *self.memory_hosts)))

    @cached_property
    def units(self) -> tuple[str, ...]:
        """All units of all devices, in order of first mention."""
        return tuple(dict.fromkeys(unit for device in self.devices for unit in device.units))

    @cached_property
    def unit_ids(self) -> tuple[tuple[int, ...], ...]:
        """For each device the positions of its units in `units`."""
        position = {unit: index for index, unit in enumerate(self.units)}
        return tuple(tuple(position[unit] for unit in device.units) for device in self.devices)

    @cached_property
    def link_resources(self) -> tuple[tuple[int, ...], ...]:
        """For each link what a copy over it occupies.

        Ids below `len(units)` are units, by position; the others are what only copies occupy. They
        follow `congestion` and the devices' `copy_engines`.
        """
        return self._occupancy.of_links

    def route_resources(self, route: tuple[int, ...]) -> tuple[int, ...]:
        """Return what a copy over all links of `route` occupies: ids as in `link_resources`."""
        return tuple(dict.fromkeys(r for link in route for r in self.link_resources[link]))

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """Names of what serves one step at a time: `units`, then what only copies occupy."""
        return tuple(
            name if kind == "unit" else f"{kind} {name}" if name else kind
            for kind, name in self._occupancy.keys
        )

    def copying_device(self, src: int, dst: int) -> int | None:
        """Return the CPU device that does copies from memory `src` to `dst` itself.

        Rather one that gets the value, and has it in its caches then; the other end goes on. None:
        nobody does, since the host has copy engines (or threads) for them, the memories are of
        different hosts or an end is of no CPU.
        """
        return self._occupancy.copying_device(src, dst)

    @cached_property
    def _occupancy(self) -> Occupancy:
        return Occupancy(self)

    @cached_property
    def channels(self) -> tuple[str, ...]:
        """All channels of all links, in order of first mention."""
        return tuple(dict.fromkeys(link.channel for link in self.links))

    def device_id(self, name: str) -> int:
        """Return the id of the device called `name`.

        Raises
        ------
        ClusterError
            There is no such device.
        """
        if name in self._device_ids:
            return self._device_ids[name]
        names = ", ".join(device.name for device in self.devices)
        raise ClusterError(f"cluster {self.name!r} has no device {name!r}; it has: {names}")

    @cached_property
    def _device_ids(self) -> dict[str, int]:
        return {device.name: index for index, device in enumerate(self.devices)}

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the link ids of the best path from memory `src` to memory `dst`.

        The direct link if there is one; else the widest path, then the fewest hops, then the
        lowest ids (Moirai III-C). Empty when `src == dst`.

        Raises
        ------
        ClusterError
            No path exists.
        """
        if src == dst:
            return ()
        path = self._routes.ways(src).get(dst)
        if path is None:
            raise ClusterError(
                f"cluster {self.name!r}: no link leads from memory "
                f"{self.memories[src].name!r} to {self.memories[dst].name!r}; add one to "
                f"'links', or leave out the devices of one of them"
            )
        return path

    def routes_from(self, src: int) -> Mapping[int, tuple[int, ...]]:
        """Return `route(src, dst)` for every other memory `dst` that is reachable from `src`."""
        return self._routes.ways(src)

    def is_reachable(self, src: int, dst: int) -> bool:
        """Say whether data can go from memory `src` to memory `dst`."""
        return self._routes.is_reachable(src, dst)

    @cached_property
    def _routes(self) -> Routes:
        return Routes(
            len(self.memories),
            [(link.src, link.dst, link.bytes_per_second) for link in self.links],
        )

    def transfer_ns(self, route: tuple[int, ...], num_bytes: int) -> int:
        """Return the time of one transfer over `route`: all latencies, then its slowest link."""
        if not route:
            return 0
        links = [self.links[link] for link in route]
        latency_ns = sum(link.latency_ns for link in links)
        return latency_ns + max(link.payload_ns(num_bytes) for link in links)

    def digest(self) -> str:
        """Return a hex digest of everything that a plan depends on; computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        value: dict[str, Any] = {"name": self.name, "host": self.host}
        for key, entries in (
            ("memories", self.memories),
            ("devices", self.devices),
            ("links", self.links),
        ):
            value[key] = [_fields(entry) for entry in entries]
        # What older files do not say is left out where it has its default: their digests stay.
        if self.congestion != "channel":
            value["congestion"] = self.congestion
        for link in value["links"]:
            if not link["measured"]:
                del link["measured"]
        for memory in value["memories"]:
            if not memory["host"]:
                del memory["host"]
        for device in value["devices"]:
            for key, default in (("copy_engines", None), ("batch_sizes", (1,)), ("part", 0)):
                if device[key] == default:
                    del device[key]
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _fields(entry: Memory | Device | Link) -> dict[str, Any]:
    # Not `dataclasses.asdict`, whose deep copies take a second for 100,000 links.
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


def _faults(cluster: Cluster) -> list[str]:
    """Every broken invariant of `cluster`, as text."""
    faults = []
    if not cluster.devices:
        faults.append("it has no device; at least one is needed")
    kinds = (("memory", cluster.memories), ("device", cluster.devices), ("link", cluster.links))
    for kind, values in kinds:
        uses = Counter(value.name for value in values)
        for name in sorted(name for name, count in uses.items() if count > 1):
            faults.append(f"{kind} name {name!r} is used {uses[name]} times")
    if cluster.congestion not in CONGESTION_MODES:
        faults.append(
            f"congestion {cluster.congestion!r} is unknown; there are: "
            f"{', '.join(CONGESTION_MODES)}"
        )
    memory_ids = range(len(cluster.memories))
    for memory in cluster.memories:
        if memory.bytes <= 0:
            faults.append(f"memory {memory.name!r}: bytes must be > 0, got {memory.bytes}")
    for device in cluster.devices:
        if device.memory not in memory_ids:
            faults.append(f"device {device.name!r}: memory id {device.memory} is out of range")
        if device.copy_engines not in COPY_ENGINES:
            faults.append(
                f"device {device.name!r}: copy_engines must be 0, 1, 2 or None (no limit), got "
                f"{device.copy_engines}"
            )
        if device.part < 0 or (device.part and device.kind == "cpu"):
            faults.append(
                f"device {device.name!r}: part must be >= 0, and 0 for a CPU, got {device.part}"
            )
        sizes = device.batch_sizes
        if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            faults.append(
                f"device {device.name!r}: batch_sizes must be numbers >= 1, ascending, got {sizes}"
            )
    faults += [fault for _, fault in devices_apart(cluster.memories, cluster.devices)]
    for link in cluster.links:
        if link.src not in memory_ids or link.dst not in memory_ids or link.src == link.dst:
            faults.append(f"link {link.name!r}: needs two different memories")
        if link.bytes_per_second <= 0 or link.latency_ns < 0:
            faults.append(f"link {link.name!r}: bandwidth must be > 0 and latency >= 0")
        points = [num_bytes for num_bytes, _ in link.measured]
        is_rising = points == sorted(set(points)) and min(points, default=1) > 0
        if not is_rising or any(time_ns < 0 for _, time_ns in link.measured):
            faults.append(
                f"link {link.name!r}: measured sizes must be > 0 and ascending and times >= 0"
            )
    if cluster.host is not None and cluster.host not in memory_ids:
        faults.append(f"host memory id {cluster.host} is out of range")
    return faults
