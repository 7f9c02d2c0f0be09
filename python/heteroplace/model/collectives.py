"""The collectives: what each reads and makes on which of its devices, and how long it takes.

Kinds and their meaning are those of DistIR (section 2), in which an op may occupy several devices;
a kind that is not here is registered from outside. Times are those of rings (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3): every device
sends each part once around, and the slowest link of the ring is the pace of all. DistIR takes the
mean bandwidth of all pairs instead, which no ring reaches where links differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heteroplace.model.cluster import Cluster

_PREFIX = "heteroplace."


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """What a collective reads and makes, and where.

    With one input tensor for each device, device i reads the i-th in the order of their ids
    (tensor parallelism: a shard each). With one input tensor, which is shared, each device reads
    its own value of it (data parallelism: its gradient).
    """

    name: str
    reads: str
    """"each": all devices read; "root": one does, the only input tensor."""
    makes: str
    """"all": one tensor, in the memories of all devices; "each": one for each device, by output
    index, in that device's memory; "root": one, in that of the root."""
    sums: bool = False
    """What is read is added up, in rank order."""


Duration = Callable[["Cluster", int, tuple[int, ...], int], int]
"""Of (cluster, bytes, devices, root): ns of the transfers; see `collective_ns`."""


class _Registered(NamedTuple):
    kind: CollectiveKind
    transfers_ns: Duration


def collective_op(kind: str) -> str:
    """Return the op of a task that is a collective of that kind: its Relay op.

    >>> collective_op("all_reduce")
    'heteroplace.all_reduce'
    """
    return _PREFIX + kind


def collective_kind(op: str) -> CollectiveKind | None:
    """Return the kind of collective that an op is; None: it is none.

    >>> collective_kind("heteroplace.broadcast").makes, collective_kind("gather")
    ('all', None)
    """
    # Not the name alone: Relay has an op "gather", and files call tasks and ops as they like.
    if not op.startswith(_PREFIX):
        return None
    kind = KINDS.get(op.removeprefix(_PREFIX))
    return kind.kind if kind else None


def register_collective(kind: CollectiveKind, transfers_ns: Duration) -> None:
    """Add a kind of collective, or replace one; `transfers_ns` is as `Duration` says."""
    KINDS[kind.name] = _Registered(kind, transfers_ns)


def ring_ns(cluster: Cluster, devices: Sequence[int], rounds: int, num_bytes: int) -> int:
    """Return the time of a ring over the devices in their order, at the pace of its slowest edge.

    Parameters
    ----------
    rounds
        Number of transfers over each edge, one after the other.
    num_bytes
        What these carry together over one edge.
    """
    slowest = 0
    for src, dst in ring_edges(cluster, devices):
        links = [cluster.links[link] for link in cluster.route(src, dst)]
        each = -(-num_bytes // rounds)
        payload = max(
            # Points were measured for single transfers.
            rounds * link.payload_ns(each) if link.measured else link.payload_ns(num_bytes)
            for link in links
        )
        slowest = max(slowest, payload + rounds * sum(link.latency_ns for link in links))
    return slowest


def ring_edges(cluster: Cluster, devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of different memories that follow each other in the ring of devices."""
    memories = [cluster.devices[device].memory for device in devices]
    pairs = zip(memories, [*memories[1:], *memories[:1]], strict=True)
    return list(dict.fromkeys((src, dst) for src, dst in pairs if src != dst))


def root_edges(
    cluster: Cluster, kind: CollectiveKind, devices: Sequence[int], root: int
) -> list[tuple[int, int]]:
    """Return the pairs of memories that the root's transfers go between, in rank order."""
    memories = [cluster.devices[device].memory for device in devices]
    home = memories[root]
    others = [memory for memory in memories if memory != home]
    return [(home, memory) if kind.reads == "root" else (memory, home) for memory in others]


def edges(
    cluster: Cluster, kind: CollectiveKind, devices: Sequence[int], root: int = 0
) -> list[tuple[int, int]]:
    """Return the pairs of memories between which a collective transfers anything."""
    if "root" in (kind.reads, kind.makes):
        return root_edges(cluster, kind, devices, root)
    return ring_edges(cluster, devices)


def _rounds(parts_of_each: int) -> Duration:
    """Rings in which each device sends so many parts, of as many as there are devices, on."""

    def transfers_ns(cluster: Cluster, num_bytes: int, devices: tuple[int, ...], _: int) -> int:
        rounds = parts_of_each * (len(devices) - 1)
        return ring_ns(cluster, devices, rounds, -(-num_bytes * rounds // len(devices)))

    return transfers_ns


def _with_root(kind: CollectiveKind, *, is_parted: bool) -> Duration:
    """Transfers between the root and all others, one after the other: they share the root."""

    def transfers_ns(cluster: Cluster, num_bytes: int, devices: tuple[int, ...], root: int) -> int:
        each = -(-num_bytes // len(devices)) if is_parted else num_bytes
        pairs = root_edges(cluster, kind, devices, root)
        return sum(cluster.transfer_ns(cluster.route(src, dst), each) for src, dst in pairs)

    return transfers_ns


def _built_in() -> dict[str, _Registered]:
    registered: dict[str, _Registered] = {}
    for kind, parts_of_each in (
        (CollectiveKind("all_reduce", "each", "all", sums=True), 2),
        (CollectiveKind("all_gather", "each", "all"), 1),
        (CollectiveKind("reduce_scatter", "each", "each", sums=True), 1),
        (CollectiveKind("all_to_all", "each", "each"), 1),
    ):
        registered[kind.name] = _Registered(kind, _rounds(parts_of_each))
    for kind, is_parted in (
        (CollectiveKind("reduce", "each", "root", sums=True), False),
        (CollectiveKind("broadcast", "root", "all"), False),
        (CollectiveKind("scatter", "root", "each"), True),
        (CollectiveKind("gather", "each", "root"), True),
    ):
        registered[kind.name] = _Registered(kind, _with_root(kind, is_parted=is_parted))
    return registered


KINDS = _built_in()
"""By name; `register_collective` adds to them."""


@dataclass(frozen=True)
class CollectiveCosts:
    """Times of collectives that were fitted to measurements, in place of those of rings."""

    fits: tuple[tuple[str, int, float, float], ...] = ()
    """(kind, number of devices, ns per byte, ns): the time is linear in the bytes."""
    in_updates: frozenset[str] = frozenset()
    """Names of the collectives that are part of what their updates take: those read what all
    members bring, and add it up (`lower.collectives.sums_in_updates`)."""

    def ns(self, kind: str, num_devices: int, num_bytes: int) -> int | None:
        """Return the time, rounded up to whole nanoseconds; None: nothing was fitted for it."""
        for name, count, per_byte_ns, fixed_ns in self.fits:
            if (name, count) == (kind, num_devices):
                return -int(-(per_byte_ns * num_bytes + fixed_ns) // 1)
        return None


def collective_ns(
    cluster: Cluster,
    kind: CollectiveKind,
    num_bytes: int,
    devices: tuple[int, ...],
    root: int = 0,
    fitted: CollectiveCosts | None = None,
) -> int:
    """Return how long a collective takes: its start, its sums and its transfers.

    Parameters
    ----------
    num_bytes
        Of the whole tensor: the largest that it reads or makes.
    devices
        In rank order, which is that of the ring. Those of one memory exchange nothing.
    root
        Position in `devices`, for kinds that have one.
    fitted
        What was measured, if anything was; it counts before all else.

    Raises
    ------
    ClusterError
        There is no route between two of the devices.
    """
    measured_ns = fitted.ns(kind.name, len(devices), num_bytes) if fitted else None
    if measured_ns is not None:
        return measured_ns
    members = [cluster.devices[device] for device in devices]
    time_ns = KINDS[kind.name].transfers_ns(cluster, num_bytes, devices, root)
    speeds = [member.memory_bytes_per_second for member in members]
    given_speeds = [speed for speed in speeds if speed is not None]
    if kind.sums and given_speeds:
        time_ns += -(-len(devices) * num_bytes * 1_000_000_000 // min(given_speeds))
    return time_ns + max(member.launch_ns for member in members)
