"""Measure the links between the hosts of a cluster: real messages, by the executors of all ranks.

Latency and bandwidth of each direction between any two hosts, and which of them get in each
other's way. A rank runs on each host; all call the same and find the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heteroplace.costs.link_fit import undisturbed_ns
from heteroplace.errors import ClusterError
from heteroplace.measure.transfers.link_report import (
    CopyTimes,
    LinkMeasurement,
    LinkReport,
    fit_copies,
)
from heteroplace.measure.transfers.links import (
    QUIET_SHARE,
    LinkProbeOptions,
    step_times_of_runs,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.units import format_bytes
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.parts.hosts.message_programs import (
    MessageTrip,
    load_on_ranks,
    message_pairs,
    message_streams,
    message_trips,
)
from heteroplace.run.missing_devices import missing_devices
from heteroplace.run.transport import Ranks, check_ranks
from heteroplace.stage_log import Progress, StageLog
from heteroplace.stats import median

_FIRST_SIZES = (4, 4096, 65536)
"""Bytes of the messages that tell how large ones can be measured in reasonable time."""
_NUM_FIRST_RUNS = 7
_MAX_MESSAGE_NS = 100_000_000
"""Longer messages are not measured, unless they are small or one of two: networks may be slow, and
beyond the largest size the bandwidth counts."""
_STREAM_MESSAGE_NS = 10_000_000
"""About how long each message of a stream takes."""
_NUM_STREAM_MESSAGES = 8
"""Of the slowest link of a group; faster ones send as long."""
_MAX_STREAM_MESSAGES = 64
_SHARED = 2.0
"""Slowdown of messages that go from one host to one other: they are sent one after the other."""

Pair = tuple[int, int]
"""Memories from and to."""
Samples = dict[Pair, dict[int, list[int]]]
"""For each ordered pair, by size, the ns of a message of that size and of a short one back."""


def measure_messages(
    cluster: Cluster,
    ranks: Ranks,
    progress: Progress | None = None,
    options: LinkProbeOptions = LinkProbeOptions(),  # noqa: B008  (it is frozen)
) -> LinkReport:
    """Measure messages between all hosts of a cluster, rank i on `cluster.hosts[i]`; all ranks.

    Every run has all pairs and all sizes. A message there and a short one back are timed by the
    clock of who sends first, less what the other side did meanwhile by its own. The lower
    quartiles of all runs count (the shortest, where the waits hide the messages): other programs,
    which on other machines nobody sees, only ever lengthen a message. The latency is shared equally
    by the two directions.

    Parameters
    ----------
    cluster : Cluster
        Its links do not matter.
    ranks : Ranks
        One for each host of the cluster.

    Raises
    ------
    ClusterError
        There is not a rank for each host, a device of a host is not there, or all sizes take
        equally long.
    ExecutionError
        There is not enough memory, or a rank fails.
    """
    _check(cluster, ranks)
    log = StageLog.of(progress)
    pairs = message_pairs(cluster)
    if not pairs:
        return LinkReport((), ())
    log.say(f"Timing messages between {len(cluster.hosts)} hosts")
    brief = replace(options, sizes=_FIRST_SIZES, num_runs=_NUM_FIRST_RUNS, num_warm_runs=1)
    first = _one_way(_time_trips(cluster, ranks, brief), share=0.0)
    each_ns = max(map(_byte_ns, first.values()))
    num_sizes = sum(
        size <= _FIRST_SIZES[-1] or size * each_ns <= _MAX_MESSAGE_NS for size in options.sizes
    )
    # A line needs two.
    sizes = options.sizes[: max(2, num_sizes)]
    log.say(f"Timing messages of up to {format_bytes(sizes[-1])}")
    times = _fit(_time_trips(cluster, ranks, replace(options, sizes=sizes)), log)
    ordered = [pair for low, high in pairs for pair in ((low, high), (high, low))]
    links = tuple(LinkMeasurement(*pair, times[pair], times[pair], None) for pair in ordered)
    log.say(f"Timing {len(links)} links between hosts against each other")
    return LinkReport(links, _time_streams(cluster, ranks, links, options))


def _check(cluster: Cluster, ranks: Ranks) -> None:
    check_ranks(cluster, ranks)
    host = cluster.hosts[ranks.rank]
    names = [device.name for device in cluster.devices]
    absent = ranks.gather(missing_devices(cluster, names, host))
    if any(absent):
        missing_texts = "; ".join(text for texts in absent for text in texts)
        raise ClusterError(
            f"links are measured between the hosts themselves, and they lack {missing_texts}. "
            f"Start the "
            f"ranks in the order of the hosts {list(cluster.hosts)}"
        )


def _byte_ns(times_ns: Mapping[int, int]) -> float:
    """About what a byte takes beside the latency, by the times of `_FIRST_SIZES`."""
    return max(1, times_ns[_FIRST_SIZES[-1]] - times_ns[_FIRST_SIZES[0]]) / _FIRST_SIZES[-1]


def _time_trips(cluster: Cluster, ranks: Ranks, options: LinkProbeOptions) -> Samples:
    """Time all trips; those of the smallest size both ways count for both directions."""
    program, trips = message_trips(cluster, options.sizes)
    runs = _runs(load_on_ranks(program, cluster, ranks), ranks, options)
    totals: Samples = {}
    for starts, finishes in runs:
        for trip in trips:
            size, pair = _direction(trip)
            total_ns = trip.hand_over_ns(starts, finishes)
            totals.setdefault(pair, {}).setdefault(size, []).append(total_ns)
            if trip.bytes == trip.back_bytes:
                totals.setdefault(pair[::-1], {}).setdefault(size, []).append(total_ns)
    return totals


def _one_way(totals: Samples, share: float) -> dict[Pair, dict[int, int]]:
    """For each ordered pair, by size, the ns from who makes the bytes to who reads them.

    `share`: as in `undisturbed_ns`.
    """
    times = {}
    for pair, of_size in totals.items():
        quiet_ns = undisturbed_ns(of_size, share)
        # The way back is of the smallest size.
        back_ns = quiet_ns[min(quiet_ns)] // 2
        times[pair] = {size: max(1, ns - back_ns) for size, ns in quiet_ns.items()}
    return times


def _fit(totals: Samples, log: StageLog) -> dict[Pair, CopyTimes]:
    try:
        return _lines(_one_way(totals, QUIET_SHARE))
    except ClusterError:
        log.detail("Waits are longer than the messages: the shortest of all count")
    return _lines(_one_way(totals, share=0.0))


def _lines(times_ns: Mapping[Pair, Mapping[int, int]]) -> dict[Pair, CopyTimes]:
    return {pair: fit_copies(list(of_size.items())) for pair, of_size in times_ns.items()}


def _direction(trip: MessageTrip) -> tuple[int, Pair]:
    """Size of the longer message of a trip, and from where to where it goes."""
    if trip.bytes >= trip.back_bytes:
        return trip.bytes, (trip.low, trip.high)
    return trip.back_bytes, (trip.high, trip.low)


def _time_streams(
    cluster: Cluster,
    ranks: Ranks,
    links: Sequence[LinkMeasurement],
    options: LinkProbeOptions,
) -> tuple[tuple[float | None, ...], ...]:
    """How much longer each link's messages take beside those of each other link.

    One link of each ordered pair of hosts is measured, and stands for the others of the pair.
    """
    hosts = cluster.memory_hosts
    ways = [(hosts[link.src], hosts[link.dst]) for link in links]
    chosen = [ways.index(way) for way in dict.fromkeys(ways)]
    together = [
        (one, two)
        for place, one in enumerate(chosen)
        for two in chosen[place + 1 :]
        if set(ways[one]) & set(ways[two])
    ]
    groups: list[tuple[int, ...]] = [*((index,) for index in chosen), *together]
    num_bytes = [_stream_bytes(link.handed, options) for link in links]
    each_ns = [
        max(1, size * 10**9 // link.handed.bytes_per_second)
        for link, size in zip(links, num_bytes, strict=True)
    ]
    counts = [_balanced([each_ns[link] for link in group]) for group in groups]
    ends = [(link.src, link.dst) for link in links]
    program, phases = message_streams(cluster, ends, counts, groups, num_bytes)
    executor = load_on_ranks(program, cluster, ranks)
    ratios: dict[tuple[int, int], list[float]] = {}
    for starts, _ in _runs(executor, ranks, replace(options, num_runs=3, num_warm_runs=1)):
        alone = {phase[0].link: phase[0].message_ns(starts) for phase in phases[: len(chosen)]}
        for first, second in phases[len(chosen) :]:
            for stream, other in ((first, second), (second, first)):
                slowdown = stream.message_ns(starts) / alone[stream.link]
                ratios.setdefault((stream.link, other.link), []).append(slowdown)
    medians = {pair: median(values) for pair, values in ratios.items()}

    def slowdown_of(one: int, two: int) -> float | None:
        if one == two:
            return None
        if ways[one] == ways[two]:
            return _SHARED
        return medians.get((chosen_of[one], chosen_of[two]))

    chosen_of = [ways.index(way) for way in ways]
    every = range(len(links))
    return tuple(tuple(slowdown_of(one, two) for two in every) for one in every)


def _stream_bytes(times: CopyTimes, options: LinkProbeOptions) -> int:
    size = times.bytes_per_second * _STREAM_MESSAGE_NS // 10**9
    return max(1, min(options.contention_bytes, size))


def _balanced(times_ns: Sequence[int]) -> list[int]:
    """How many messages of each link last equally long."""
    whole_ns = _NUM_STREAM_MESSAGES * max(times_ns)
    return [min(_MAX_STREAM_MESSAGES, max(2, round(whole_ns / each))) for each in times_ns]


def _runs(
    executor: NativeExecutor, ranks: Ranks, options: LinkProbeOptions
) -> list[tuple[dict[int, int], dict[int, int]]]:
    """Start and finish of every step of all ranks, of the runs that count; all ranks."""
    everywhere = ranks.gather(step_times_of_runs(executor, options))
    return [
        (
            {step: ns for starts, _ in of_ranks for step, ns in starts.items()},
            {step: ns for _, finishes in of_ranks for step, ns in finishes.items()},
        )
        for of_ranks in zip(*everywhere, strict=True)
    ]
