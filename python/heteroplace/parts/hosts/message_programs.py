"""Hosts of a cluster -> programs of messages between them, for the executors of all ranks.

What is costed is what is run. The programs of all hosts are one, which
`lower/project.py` cuts. Each rank has a clock of its own, so that only times of one rank are
subtracted; trips there and back need no common clock, and streams are timed where they arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.lower.program import Program, bundle_text
from heteroplace.lower.project import project
from heteroplace.measure.transfers.copy_writer import REST_BYTES, CopyWriter, Wait
from heteroplace.measure.transfers.link_programs import NUM_WARM_TRIPS, page_aligned
from heteroplace.model.cluster import Cluster
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.transport import Ranks
from heteroplace.run.tvm_library import library_if_needed


@dataclass(frozen=True)
class MessageTrip:
    """The steps of a message from `low` to `high`, and of one back."""

    low: int
    """Id of a memory."""
    high: int
    bytes: int
    """Of the message to `high`."""
    back_bytes: int
    low_done: int
    """Step of `low` after which it has something to send."""
    high_begin: int
    """First and last step of `high` between the messages."""
    high_done: int
    low_begin: int
    """First step of `low` that needs what came back."""

    def hand_over_ns(self, starts: Mapping[int, int], finishes: Mapping[int, int]) -> int:
        """Return what the two messages took, from who makes the bytes to who reads them.

        Parameters
        ----------
        starts, finishes
            By step, in ns of the clock of the step's own rank.
        """
        away_ns = starts[self.low_begin] - finishes[self.low_done]
        busy_ns = finishes[self.high_done] - starts[self.high_begin]
        return max(1, away_ns - busy_ns)


@dataclass(frozen=True)
class Stream:
    """Messages over one link, one after the other as fast as they go."""

    link: int
    """Position among the links."""
    num_messages: int
    first: int
    """Step that begins when the first one is there."""
    last: int

    def message_ns(self, starts: Mapping[int, int]) -> float:
        """Return the time from one message to the next, by the clock of who receives them."""
        return max(1.0, (starts[self.last] - starts[self.first]) / (self.num_messages - 1))


def message_pairs(cluster: Cluster) -> list[tuple[int, int]]:
    """Return the unordered pairs of memories on two hosts that messages can go between.

    They go between memories of CPUs; what a GPU holds is copied to one of these first.
    """
    hosts = cluster.memory_hosts
    of_cpus = sorted({each.memory for each in cluster.devices if each.kind == "cpu"})
    return [
        (low, high)
        for index, low in enumerate(of_cpus)
        for high in of_cpus[index + 1 :]
        if hosts[low] != hosts[high]
    ]


def message_trips(
    cluster: Cluster, sizes: Sequence[int]
) -> tuple[Program, tuple[MessageTrip, ...]]:
    """Return one chain of trips between the memories of all pairs of hosts, with all sizes.

    For each pair the smallest size there and back, then each other size there and the smallest
    back, and the smallest there and the other back: so what each direction takes follows, whatever
    the other one takes. Each pair starts with some short trips that are not returned.

    Parameters
    ----------
    sizes
        Bytes of the messages, ascending.
    """
    largest = page_aligned(max(sizes))
    writer = CopyWriter(cluster, [2 * largest + 2 * REST_BYTES] * len(cluster.memories))
    short = sizes[0]
    chain = [(short, short)] * (NUM_WARM_TRIPS + 1)
    for size in sizes[1:]:
        chain += [(size, short), (short, size)]
    trips = []
    for low, high in message_pairs(cluster):
        steps = []
        for there, back in chain:
            low_begin, low_done = writer.produce(low, there, largest)
            writer.carry(low, high, (largest, 0), there)
            high_begin, high_done = writer.produce(high, back, largest)
            writer.carry(high, low, (largest, 0), back)
            steps.append((low_begin, low_done, high_begin, high_done))
        end, _ = writer.produce(low, short, largest)
        begins = [*(begin for begin, *_ in steps[1:]), end]
        for (there, back), (_, done, first, last), begin in list(
            zip(chain, steps, begins, strict=True)
        )[NUM_WARM_TRIPS:]:
            trips.append(MessageTrip(low, high, there, back, done, first, last, begin))
    return writer.finish(), tuple(trips)


def message_streams(
    cluster: Cluster,
    links: Sequence[tuple[int, int]],
    counts: Sequence[Sequence[int]],
    groups: Sequence[Sequence[int]],
    num_bytes: Sequence[int],
) -> tuple[Program, tuple[tuple[Stream, ...], ...]]:
    """Return a program of phases; in each the links of one group send at once.

    All hosts meet before each phase.

    Parameters
    ----------
    links : sequence of (int, int)
        Memories from and to, on two hosts.
    counts : sequence of sequence of int
        For each group and each of its links how many messages it sends, at least two.
    groups : sequence of sequence of int
        Positions in `links`.
    num_bytes : sequence of int
        Of each message of each link.
    """
    strides = [page_aligned(size) for size in num_bytes]
    # The first page is for the meetings and the marks.
    used = [page_aligned(1)] * len(cluster.memories)
    places = []
    for link, (src, dst) in enumerate(links):
        places.append((used[src], used[dst]))
        used[src] += strides[link]
        used[dst] += strides[link]
    writer = CopyWriter(cluster, used)
    ends: list[list[Wait]] = [[] for _ in cluster.hosts]
    phases = []
    for group, times in zip(groups, counts, strict=True):
        ends = _meet(cluster, writer, ends)
        received: list[tuple[int, int, Wait, Wait]] = []
        for link, count in zip(group, times, strict=True):
            src, dst = links[link]
            tensors = (
                writer.tensor(src, places[link][0], num_bytes[link]),
                writer.tensor(dst, places[link][1], num_bytes[link]),
            )
            begin, end = ends[writer.host(src)], ends[writer.host(dst)]
            waits = [writer.send(src, dst, tensors, begin, end) for _ in range(count)]
            received.append((link, count, waits[0], waits[-1]))
        # Marks of one memory are of one queue: all of the first messages are before the last ones.
        firsts = [writer.mark(links[link][1], wait) for link, _, wait, _ in received]
        lasts = [writer.mark(links[link][1], wait) for link, _, _, wait in received]
        for link, _, _, wait in received:
            ends[writer.host(links[link][1])].append(wait)
        phases.append(
            tuple(
                Stream(link, count, first, last)
                for (link, count, _, _), first, last in zip(received, firsts, lasts, strict=True)
            )
        )
    return writer.finish(), tuple(phases)


def round_trip_program(cluster: Cluster, num_bytes: int, num_trips: int) -> Program:
    """Return a program that sends something there and back between the first two hosts.

    Each core waits for what comes, does next to nothing, and what it sends then waits for it.
    """
    low, high = message_pairs(cluster)[0]
    # The first page is for what the cores do, then there is what goes and what comes.
    going, size = page_aligned(1), page_aligned(num_bytes)
    writer = CopyWriter(cluster, [going + 2 * size] * len(cluster.memories))
    awaited: tuple[Wait, ...] = ()
    for _ in range(num_trips):
        for src, dst in ((low, high), (high, low)):
            reply = writer.do_little(src, awaited)
            ends = (
                writer.tensor(src, going, num_bytes),
                writer.tensor(dst, going + size, num_bytes),
            )
            awaited = (writer.send(src, dst, ends, (reply,), ()),)
    writer.do_little(low, awaited)
    return writer.finish()


def _meet(cluster: Cluster, writer: CopyWriter, ends: Sequence[Sequence[Wait]]) -> list[list[Wait]]:
    """Let all hosts come to what they have to wait for; return what to wait for until all have."""
    hosts = cluster.memory_hosts
    of_cpus = sorted({each.memory for each in cluster.devices if each.kind == "cpu"})
    ports = [next(m for m in of_cpus if hosts[m] == host) for host in cluster.hosts]
    tensors = [writer.tensor(port, 0, 1) for port in ports]
    arrived = list(ends[0])
    for host in range(1, len(ports)):
        ends_there = (tensors[host], tensors[0])
        arrived.append(writer.send(ports[host], ports[0], ends_there, ends[host], ends[0]))
    met = [arrived]
    for host in range(1, len(ports)):
        ends_there = (tensors[0], tensors[host])
        met.append([writer.send(ports[0], ports[host], ends_there, arrived, ends[host])])
    return met


def load_on_ranks(program: Program, cluster: Cluster, ranks: Ranks) -> NativeExecutor:
    """Return the executor of this rank's part of a program without kernels; all ranks.

    Each runs the program by itself, as often as the others.
    """
    text = bundle_text(project(program, cluster.hosts, feeder=0))
    return NativeExecutor(library_if_needed("", text), "", text, transport=ranks.transport())
