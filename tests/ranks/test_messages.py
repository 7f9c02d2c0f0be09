"""Links between hosts, measured by messages of the executors of all ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from thread_ranks import on_ranks

from heteroplace.errors import ClusterError
from heteroplace.lower.program import Program, bundle_text
from heteroplace.lower.project import project
from heteroplace.measure.transfers.link_report import LinkReport, with_measured_links
from heteroplace.measure.transfers.links import LinkProbeOptions
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.native.transports import check_programs
from heteroplace.parts.hosts.machines import hosts_of_cores, join_hosts
from heteroplace.parts.hosts.message_programs import (
    MessageTrip,
    Stream,
    message_pairs,
    message_streams,
    message_trips,
    round_trip_program,
)
from heteroplace.parts.hosts.messages import _fit, measure_messages
from heteroplace.run.transport import Ranks
from heteroplace.stage_log import StageLog

BRIEF = LinkProbeOptions((4, 1 << 26), 5, 1, 1 << 16)


def machine(core: int) -> Cluster:
    """Two memories of CPUs, and one of a GPU."""
    return Cluster(
        "box",
        (Memory("ram", 1 << 30), Memory("far", 1 << 30), Memory("gpu0", 1 << 30)),
        (
            Device("cpu.0", "cpu", "llvm", 0, 0, (core,)),
            Device("cpu.1", "cpu", "llvm", 0, 1, (core + 1,)),
            Device("gpu0", "cuda", "cuda", 0, 2),
        ),
        (Link("up", 0, 2, 10**9, 0, "pcie"),),
        host=0,
    )


def check(program: Program, cluster: Cluster) -> str:
    """The programs of all hosts, which the core has checked, all together."""
    text = bundle_text(project(program, cluster.hosts, feeder=0))
    assert check_programs(text) == cluster.hosts
    return text


def three_hosts() -> Cluster:
    return join_hosts("three", ["a", "b", "c"], [machine(0), machine(2), machine(4)])


@pytest.mark.parametrize("cluster", [hosts_of_cores(["a", "b", "c"]), three_hosts()])
def test_programs_of_messages_are_right_on_all_hosts_together(cluster: Cluster) -> None:
    pairs = message_pairs(cluster)
    program, trips = message_trips(cluster, (4, 4096))
    check(program, cluster)
    assert [(trip.low, trip.high) for trip in trips] == [pair for pair in pairs for _ in range(3)]
    assert [(trip.bytes, trip.back_bytes) for trip in trips[:3]] == [(4, 4), (4096, 4), (4, 4096)]
    ends = [end for low, high in pairs for end in ((low, high), (high, low))]
    program, phases = message_streams(
        cluster,
        ends,
        [[3]] * len(ends) + [[4, 2]],
        [[i] for i in range(len(ends))] + [[0, 1]],
        [100] * len(ends),
    )
    check(program, cluster)
    assert [[(each.link, each.num_messages) for each in phase] for phase in phases[-2:]] == [
        [(len(ends) - 1, 3)],
        [(0, 4), (1, 2)],
    ]


def test_messages_go_between_memories_of_cpus_on_two_hosts() -> None:
    cluster = three_hosts()
    pairs = message_pairs(cluster)
    named = {(cluster.memories[low].name, cluster.memories[high].name) for low, high in pairs}
    assert len(pairs) == 12
    assert ("ram.a", "far.b") in named
    assert not any("gpu0" in name for pair in named for name in pair)


def test_a_message_there_and_back_is_timed_without_a_common_clock() -> None:
    trip = MessageTrip(0, 1, 4, 4, low_done=1, high_begin=3, high_done=4, low_begin=6)
    # The other clock is 5,000 ns ahead.
    starts, finishes = {3: 5400, 6: 1300}, {1: 100, 4: 5900}
    assert trip.hand_over_ns(starts, finishes) == 1200 - 500


def test_a_stream_is_timed_from_its_first_message_to_its_last() -> None:
    assert Stream(0, 5, first=1, last=2).message_ns({1: 100, 2: 500}) == 100


def measured(cluster: Cluster) -> LinkReport:
    def measure(ranks: Ranks) -> LinkReport:
        return measure_messages(cluster, ranks, options=BRIEF)

    reports = on_ranks(len(cluster.hosts), measure)
    assert all(report == reports[0] for report in reports)
    return reports[0]


@pytest.mark.costly
def test_every_rank_finds_the_same_links_for_each_ordered_pair_of_hosts() -> None:
    cluster = hosts_of_cores(["a", "b"])
    report = measured(cluster)
    assert [(link.src, link.dst) for link in report.links] == [(0, 1), (1, 0)]
    for link in report.links:
        assert [size for size, _ in link.handed.samples] == list(BRIEF.sizes)
        assert link.handed.latency_ns >= 0
        assert link.handed.bytes_per_second > 0
    assert report.duplex_ratio(0) is not None
    found = with_measured_links(cluster, report)
    assert [link.name for link in found.links] == ["ram.a->ram.b", "ram.b->ram.a"]
    assert all(link.measured for link in found.links)


def test_the_shortest_messages_count_where_waits_hide_the_others() -> None:
    hidden = {4: [900, 5000, 5000, 5000, 5000], 4000: [1450, 5000, 5000, 5000, 5000]}
    told: list[str] = []
    fit = _fit({(0, 1): hidden}, StageLog(told.append))[0, 1]
    assert fit.samples == ((4, 450), (4000, 1000))
    assert told == ["Waits are longer than the messages: the shortest of all count"]


def test_round_trips_of_the_benchmark_are_right_on_both_hosts() -> None:
    cluster = hosts_of_cores(["a", "b"])
    text = check(round_trip_program(cluster, 4096, 3), cluster)
    assert text.count("\nsend ") == text.count("\nrecv ") == 6


def test_ranks_that_are_not_the_hosts_are_refused() -> None:
    cluster = hosts_of_cores(["a", "b"])

    def measure(ranks: Ranks) -> LinkReport:
        return measure_messages(cluster, ranks, options=BRIEF)

    with pytest.raises(ClusterError, match=r"there are 3 ranks; start one for each: mpiexec -n 2"):
        on_ranks(3, measure)
    device = replace(cluster.devices[1], cores=(4096,))
    cluster = replace(cluster, devices=(cluster.devices[0], device))
    with pytest.raises(ClusterError, match=r"they lack cpu.all.b \(core 4096"):
        on_ranks(2, measure)
