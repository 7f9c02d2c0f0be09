"""Measured copies between the memories of a machine -> links of a cluster.

Each ordered pair of memories has its fitted line (DistIR, section 4) and the sizes that were
timed; each pair of links how much they slow each other, from which the channels follow (Moirai
eq. 8: links of one channel are never used at once).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heteroplace.costs.link_fit import link_from_samples, undisturbed_ns
from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Link

SHARED_SLOWDOWN = math.sqrt(2)
"""Two links that slow each other by this or more share a channel. Planned as separate, two equal
copies are predicted to take 1 (the time of one), and take `s`; planned as one channel, 2. At
`s = sqrt(2)` both predictions are wrong by the same factor."""


@dataclass(frozen=True)
class CopyTimes:
    """Times of copies of several sizes over one link, and the line through them."""

    samples: tuple[tuple[int, int], ...]
    """(bytes, ns), ascending by bytes."""
    latency_ns: int
    bytes_per_second: int

    @property
    def error_ratio(self) -> float:
        """Root mean square of the line's relative errors at the samples."""
        squares = [
            ((self.latency_ns + size * 1e9 / self.bytes_per_second) / time_ns - 1) ** 2
            for size, time_ns in self.samples
        ]
        return math.sqrt(sum(squares) / len(squares))

    @property
    def measured(self) -> tuple[tuple[int, int], ...]:
        """The samples as `Link.measured` has them: without the latency, never falling."""
        points: list[tuple[int, int]] = []
        for size, time_ns in self.samples:
            least = points[-1][1] if points else 0
            points.append((size, max(least, time_ns - self.latency_ns)))
        return tuple(points)


def fit_copies(samples: Sequence[tuple[int, int]]) -> CopyTimes:
    """Fit a line to (bytes, ns) samples; errors as `link_from_samples`.

    >>> fit_copies([(1000, 6000), (100_000, 15_900)]).latency_ns
    5900
    """
    ordered = tuple(sorted(samples))
    return CopyTimes(ordered, *link_from_samples(ordered))


def fit_hand_overs(
    copies_ns: Mapping[int, Sequence[int]], waits_ns: Mapping[int, Sequence[int]], share: float
) -> tuple[CopyTimes, CopyTimes]:
    """Fit lines to hand-overs (copy and wait) and to their copies alone.

    Undisturbed copies and undisturbed waits (`undisturbed_ns`) are found apart and then added: a
    copy that nothing disturbs may have had to wait for long. The sums grow with the size because
    the copies do, however long the waits of all samples were.

    Parameters
    ----------
    copies_ns, waits_ns : mapping of int to sequence of int
        For each size in bytes the same number of samples, in ns.
    share : float
        As in `undisturbed_ns`.

    Raises
    ------
    ClusterError
        All sizes are copied in the same time: the clock cannot tell them apart.

    >>> handed, alone = fit_hand_overs({1: [1], 10_000: [1001]}, {1: [50], 10_000: [50]}, share=0)
    >>> handed.samples, alone.samples
    (((1, 51), (10000, 1051)), ((1, 1), (10000, 1001)))
    """
    # A clock may not see the shortest copies at all.
    alone_ns = {size: max(1, ns) for size, ns in undisturbed_ns(copies_ns, share).items()}
    wait_ns = undisturbed_ns(waits_ns, share)
    handed = fit_copies([(size, ns + wait_ns[size]) for size, ns in alone_ns.items()])
    return handed, fit_copies(list(alone_ns.items()))


@dataclass(frozen=True)
class LinkMeasurement:
    """What was measured from one memory to another."""

    src: int
    """Id of the memory in the cluster."""
    dst: int
    handed: CopyTimes
    """From the end of the producer to the start of the consumer: what a plan has to wait. Host
    memory is page-locked where a GPU takes part."""
    alone: CopyTimes
    """The copy itself, without the wake-ups of the worker that copies and of the consumer; between
    hosts as `handed`."""
    pageable: CopyTimes | None
    """Between ordinary host memory and a GPU, as inputs are set and outputs read; None: no GPU
    takes part, or only GPUs do."""


@dataclass(frozen=True)
class LinkReport:
    """All links that were measured, and how they get in each other's way."""

    links: tuple[LinkMeasurement, ...]
    slowdowns: tuple[tuple[float | None, ...], ...]
    """[num_links][num_links] how much longer the copies of the row's link take while the column's
    link is in use too, >= about 1; None: not measured, since they have no memory in common."""

    def duplex_ratio(self, link: int) -> float | None:
        """Return the speed of both directions at once over the sum of their speeds alone.

        1: full duplex; 0.5: the directions share; None: the other direction was not measured.
        """
        back = (self.links[link].dst, self.links[link].src)
        for other, measured in enumerate(self.links):
            there, here = self.slowdowns[link][other], self.slowdowns[other][link]
            if (measured.src, measured.dst) == back and there is not None and here is not None:
                return (1 / there + 1 / here) / 2
        return None

    def mutual_slowdown(self, first: int, second: int) -> float | None:
        """Return the larger of two links' slowdowns by each other; None: not measured."""
        there, here = self.slowdowns[first][second], self.slowdowns[second][first]
        return None if there is None or here is None else max(there, here)

    def channels(self) -> tuple[int, ...]:
        """Return for each link the number of its channel.

        Groups of links are joined, those that slow each other most first, as long as every link of
        the one shares with every link of the other (complete linkage): that a shares with b and b
        with c does not yet keep a and c apart in time. Ties: lower ids first. Cubic in links.
        """
        groups = [[link] for link in range(len(self.links))]
        while True:
            pairs = [
                (-self._least_slowdown(groups[one], groups[two]), one, two)
                for one in range(len(groups))
                for two in range(one + 1, len(groups))
            ]
            closest = min(pairs, default=None)
            if closest is None or -closest[0] < SHARED_SLOWDOWN:
                break
            _, one, two = closest
            groups[one] += groups.pop(two)
        number = {link: index for index, group in enumerate(groups) for link in group}
        return tuple(number[link] for link in range(len(self.links)))

    def _least_slowdown(self, one: Sequence[int], two: Sequence[int]) -> float:
        return min(self.mutual_slowdown(a, b) or 0.0 for a in one for b in two)


def with_measured_links(cluster: Cluster, report: LinkReport) -> Cluster:
    """Return `cluster` with the measured links in place of its own between the same memories.

    A link keeps its name if it was the only one of its pair. Links between memories that were not
    measured stay as they are.

    Raises
    ------
    ClusterError
        The report names memories that the cluster does not have.
    """
    num_memories = len(cluster.memories)
    for measured in report.links:
        if not (0 <= measured.src < num_memories and 0 <= measured.dst < num_memories):
            raise ClusterError(
                f"links were measured from memory {measured.src} to {measured.dst}; cluster "
                f"{cluster.name!r} has {num_memories} memories: measure this cluster's links"
            )
    pairs = [(measured.src, measured.dst) for measured in report.links]
    others = [link for link in cluster.links if (link.src, link.dst) not in pairs]
    names = [_name(cluster, src, dst) for src, dst in pairs]
    channels = report.channels()
    links = []
    for index, measured in enumerate(report.links):
        members = [other for other in range(len(pairs)) if channels[other] == channels[index]]
        handed = measured.handed
        links.append(
            Link(
                names[index],
                measured.src,
                measured.dst,
                handed.bytes_per_second,
                handed.latency_ns,
                _channel_name([names[member] for member in members]),
                handed.measured,
            )
        )
    return replace(cluster, links=(*others, *links))


def _name(cluster: Cluster, src: int, dst: int) -> str:
    own = [link.name for link in cluster.links if (link.src, link.dst) == (src, dst)]
    plain = f"{cluster.memories[src].name}->{cluster.memories[dst].name}"
    return own[0] if len(own) == 1 else plain


def _channel_name(members: Sequence[str]) -> str:
    if len(members) < 3:
        return " + ".join(members)
    return f"{members[0]} + {len(members) - 1} more"
