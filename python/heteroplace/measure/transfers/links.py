"""Measure the links of this machine: real copies, by the executor that runs plans.

Latency and bandwidth of each ordered pair of memories, page-locked and ordinary host memory, both
directions at once, and which links get in each other's way (channels).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.costs.link_fit import undisturbed_ns
from heteroplace.errors import ClusterError
from heteroplace.machine.probe import ordered_pairs
from heteroplace.machine.usage import QUIET_CORES, Usage
from heteroplace.measure.transfers.link_programs import (
    Phase,
    Trip,
    contention,
    load_program,
    ports,
    round_trips,
    two_cores,
)
from heteroplace.measure.transfers.link_report import (
    CopyTimes,
    LinkMeasurement,
    LinkReport,
    fit_copies,
    fit_hand_overs,
)
from heteroplace.model.cluster import Cluster
from heteroplace.model.units import format_bytes
from heteroplace.native.execute import Executor as NativeExecutor
from heteroplace.run.missing_devices import missing_devices
from heteroplace.stage_log import Count, Progress, StageLog
from heteroplace.stats import median

_MIN_PHASE_NS = 5_000_000
"""Copies that are timed beside others go on for at least this long: the workers' wake-ups, some
tens of microseconds, then hardly count."""
_MAX_COPIES = 64
QUIET_SHARE = 0.25
"""Of a quiet round the lower quartile counts, of disturbed ones the shortest of all."""
_MAX_ROUNDS = 4
"""So many rounds are tried for a quiet one."""


@dataclass(frozen=True)
class LinkProbeOptions:
    """How thoroughly links are measured."""

    sizes: tuple[int, ...] = tuple(4 ** (power + 1) for power in range(13))
    """Bytes of the copies, ascending; the default goes from 4 B to 64 MiB."""
    num_runs: int = 15
    """Runs of a round."""
    num_warm_runs: int = 3
    """Runs before them that do not count."""
    contention_bytes: int = 32 << 20
    """Size of the copies that are made at the same time: more than most caches hold."""


QUICK = LinkProbeOptions(tuple(4 * 32**power for power in range(5)), 7, 2, 4 << 20)
"""Fewer and smaller copies (4 B to 4 MiB): some tenths of a second where the default takes 2 s."""


def measure_links(
    cluster: Cluster,
    progress: Progress | None = None,
    options: LinkProbeOptions = LinkProbeOptions(),
) -> LinkReport:
    """Measure copies between all memories of a cluster, which must be this machine.

    Everything is measured in turns: every run has all pairs and all sizes, so that a disturbance
    meets all alike. A round in which other programs were quiet counts alone, by its lower
    quartiles. If there is none among the first few, the shortest copies and the shortest waits of
    all rounds count (`fit_hand_overs`): other programs only ever lengthen them. `progress` is told.
    Latencies are then those of the fastest wake-ups, down to half of the usual ones, or too long if
    every wake-up was disturbed; slowdowns are of links that share the cores with other programs.

    Every memory needs about four times the largest size, and `contention_bytes` for each of its
    links.

    Parameters
    ----------
    cluster : Cluster
        Its links do not matter. A cluster of one memory has an empty report.

    Raises
    ------
    ClusterError
        A device is not in this machine, a memory has no device, or all sizes of `options` are
        copied in the same time.
    ExecutionError
        There is not enough memory, or the driver refuses a copy.
    """
    absent = missing_devices(cluster, [device.name for device in cluster.devices])
    if absent:
        raise ClusterError(
            f"links are measured on the machine itself, and this one lacks {'; '.join(absent)}. "
            f"Run the probe there, or leave these devices out"
        )
    pairs = ordered_pairs(len(cluster.memories))
    if not pairs:
        return LinkReport((), ())
    log = StageLog.of(progress)
    largest = format_bytes(max(options.sizes))
    log.say(f"Timing copies of up to {largest} between {len(cluster.memories)} memories")
    handed, alone = _time_copies(cluster, options, log)
    pageable: dict[tuple[int, int], CopyTimes] = {}
    for index, memory in enumerate(cluster.memories):
        if _is_gpu(cluster, index):
            log.say(f"Timing copies between ordinary host memory and {memory.name}")
            into, out = ordinary_copies(cluster, index, options)
            for host in range(len(cluster.memories)):
                if not _is_gpu(cluster, host):
                    pageable[host, index], pageable[index, host] = into, out
    links = tuple(
        LinkMeasurement(*pair, handed[pair], alone[pair], pageable.get(pair)) for pair in pairs
    )
    log.say(f"Timing {len(links)} links against each other")
    return LinkReport(links, _time_contention(cluster, links, options))


def core_latencies(cores: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first core, other core, ns) of a cache line that goes from one to the other.

    Below 100 ns two cores are near neighbours at the moment. The first of `cores` is paired with
    each of the others.

    Raises
    ------
    ExecutionError
        This process may not run on a core.
    """
    latencies = []
    for other in cores[1:]:
        core_to_core_ns = load_program(two_cores((cores[0], other))).core_to_core_ns()
        assert core_to_core_ns is not None  # the program has two workers
        latencies.append((cores[0], other, core_to_core_ns))
    return latencies


def ordinary_copies(
    cluster: Cluster, memory: int, options: LinkProbeOptions
) -> tuple[CopyTimes, CopyTimes]:
    """Time copies from ordinary (pageable) host memory into a memory, and out of it.

    They are made as inputs are set and outputs read, by the calling thread.
    """
    executor = load_program(ports(cluster, memory, options.sizes))
    arrays = {size: np.ones(size, np.uint8) for size in options.sizes}
    into: dict[int, list[int]] = {size: [] for size in options.sizes}
    out: dict[int, list[int]] = {size: [] for size in options.sizes}
    for size, array in arrays.items():
        executor.set_input(f"in{size}", array)
    executor.run()  # outputs can be read after a run only
    for run in range(options.num_warm_runs + options.num_runs):
        for size, array in arrays.items():
            begin = time.perf_counter_ns()
            executor.set_input(f"in{size}", array)
            middle = time.perf_counter_ns()
            executor.get_output(f"out{size}", array)
            end = time.perf_counter_ns()
            if run >= options.num_warm_runs:
                into[size].append(middle - begin)
                out[size].append(end - middle)
    return _fit(into), _fit(out)


StepTimes = Sequence[int] | Mapping[int, int]
"""By step, in ns of the clock of the step's own device."""


def trip_times(trip: Trip, starts: StepTimes, finishes: StepTimes) -> tuple[int, int, int]:
    """Return the ns of the copy there, of the copy back, and of the waiting on either way.

    Parameters
    ----------
    starts, finishes
        Of each step, in ns of its own device's clock.

    Devices have clocks of their own, which are tied to the host's only to within some
    microseconds. So only times of one clock are subtracted: the trip's length by the clock of
    `low`, what `high` did meanwhile by its own. What is left is waiting and waking, shared equally
    by the two ways.
    """
    there_ns = finishes[trip.there] - starts[trip.there]
    back_ns = finishes[trip.back] - starts[trip.back]
    away_ns = starts[trip.low_begin] - finishes[trip.low_done]
    busy_ns = finishes[trip.high_done] - starts[trip.high_begin]
    return there_ns, back_ns, max(0, away_ns - busy_ns - there_ns - back_ns) // 2


def _time_copies(
    cluster: Cluster, options: LinkProbeOptions, log: StageLog
) -> tuple[dict[tuple[int, int], CopyTimes], dict[tuple[int, int], CopyTimes]]:
    """For each ordered pair the times from producer to consumer, and those of the copies alone."""
    program, trips = round_trips(cluster, options.sizes)
    executor = load_program(program)
    samples: list[tuple[tuple[int, int], int, int, int]] = []
    for index in range(_MAX_ROUNDS):

        def count_run(done: int, total: int, index: int = index) -> None:
            log.count(index * total + done, (index + 1) * total)

        before = Usage.now()
        pairs = []
        for starts, finishes in step_times_of_runs(executor, options, count_run):
            for trip in trips:
                there_ns, back_ns, wait_ns = trip_times(trip, starts, finishes)
                pairs.append(((trip.low, trip.high), trip.bytes, there_ns, wait_ns))
                pairs.append(((trip.high, trip.low), trip.bytes, back_ns, wait_ns))
        others_cores = Usage.now().others_since(before)
        if others_cores <= QUIET_CORES:
            return _fit_pairs(pairs, QUIET_SHARE)
        log.detail(f"Other programs used {others_cores:.1f} cores; timing more copies")
        samples += pairs
    log.detail("Other programs never rested: the shortest copies and waits count")
    return _fit_pairs(samples, share=0.0)


def _fit_pairs(
    samples: Sequence[tuple[tuple[int, int], int, int, int]], share: float
) -> tuple[dict[tuple[int, int], CopyTimes], dict[tuple[int, int], CopyTimes]]:
    """Fit to (pair, bytes, ns of the copy, ns of the waiting): hand-overs and copies alone."""
    copies_ns: dict[tuple[int, int], dict[int, list[int]]] = {}
    waits_ns: dict[tuple[int, int], dict[int, list[int]]] = {}
    for pair, size, copy_ns, wait_ns in samples:
        copies_ns.setdefault(pair, {}).setdefault(size, []).append(copy_ns)
        waits_ns.setdefault(pair, {}).setdefault(size, []).append(wait_ns)
    fits = {pair: fit_hand_overs(copies_ns[pair], waits_ns[pair], share) for pair in copies_ns}
    return {pair: fit[0] for pair, fit in fits.items()}, {
        pair: fit[1] for pair, fit in fits.items()
    }


def _time_contention(
    cluster: Cluster, links: Sequence[LinkMeasurement], options: LinkProbeOptions
) -> tuple[tuple[float | None, ...], ...]:
    """How much longer each link's copies take beside those of each other link."""
    together = [
        (one, two)
        for one in range(len(links))
        for two in range(one + 1, len(links))
        if {links[one].src, links[one].dst} & {links[two].src, links[two].dst}
    ]
    times_ns = [_copy_ns(link.alone, options.contention_bytes) for link in links]
    singles = [(index,) for index in range(len(links))]
    groups: list[tuple[int, ...]] = [*singles, *together]
    # Alone as long as beside others: two that last equally long are at work together throughout.
    counts = [_balanced([times_ns[link] for link in group]) for group in groups]
    ends = [(link.src, link.dst) for link in links]
    program, phases = contention(cluster, ends, counts, groups, options.contention_bytes)
    executor = load_program(program)
    ratios: dict[tuple[int, int], list[float]] = {}
    for starts, finishes in step_times_of_runs(executor, options):
        spans = [_phase_ns(phase, starts, finishes) for phase in phases]
        for group, count, span in list(zip(groups, counts, spans, strict=True))[len(links) :]:
            for place, link in enumerate(group):
                each_alone = spans[link][0] / counts[link][0]
                slowdown = span[place] / count[place] / each_alone
                ratios.setdefault((link, group[1 - place]), []).append(slowdown)
    medians = {pair: median(values) for pair, values in ratios.items()}
    every = range(len(links))
    return tuple(tuple(medians.get((one, two)) for two in every) for one in every)


def _balanced(times_ns: Sequence[int]) -> list[int]:
    """How many copies of each link last equally long."""
    whole_ns = max(_MIN_PHASE_NS, *times_ns)
    return [min(_MAX_COPIES, max(1, round(whole_ns / each))) for each in times_ns]


def _phase_ns(phase: Phase, starts: StepTimes, finishes: StepTimes) -> list[int]:
    return [
        max(1, finishes[last] - starts[first])
        for first, last in zip(phase.first, phase.last, strict=True)
    ]


def _copy_ns(times: CopyTimes, num_bytes: int) -> int:
    return max(1, times.latency_ns + num_bytes * 10**9 // times.bytes_per_second)


def step_times_of_runs(
    executor: NativeExecutor, options: LinkProbeOptions, on_run: Count | None = None
) -> list[tuple[dict[int, int], dict[int, int]]]:
    """Start and finish of every step, of the runs that count."""
    steps = [instruction.step for instruction in executor.instructions]
    runs = []
    num_runs = options.num_warm_runs + options.num_runs
    for run in range(num_runs):
        if on_run is not None:
            on_run(run, num_runs)
        starts, finishes = executor.run_timed()
        if run >= options.num_warm_runs:
            runs.append(
                (
                    dict(zip(steps, starts.tolist(), strict=True)),
                    dict(zip(steps, finishes.tolist(), strict=True)),
                )
            )
    return runs


def _fit(times_ns: dict[int, list[int]]) -> CopyTimes:
    # A clock may not see the shortest copies at all.
    quiet_ns = undisturbed_ns(times_ns, QUIET_SHARE)
    return fit_copies([(size, max(1, ns)) for size, ns in quiet_ns.items()])


def _is_gpu(cluster: Cluster, memory: int) -> bool:
    return any(device.memory == memory and device.kind == "cuda" for device in cluster.devices)
