"""Measured copies become links: names, channels, times, routes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.cli.probe_command import link_table
from heteroplace.errors import ClusterError
from heteroplace.machine.probe import ordered_pairs
from heteroplace.measure.transfers.link_report import (
    SHARED_SLOWDOWN,
    CopyTimes,
    LinkMeasurement,
    LinkReport,
    fit_copies,
    fit_hand_overs,
    with_measured_links,
)
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from tests.strategies import exact_cases

SLOW = CopyTimes(((1000, 11_000), (10_000, 20_000)), 10_000, 1_000_000_000)


def cluster(num_memories: int, links: tuple[Link, ...] = ()) -> Cluster:
    names = "abcdefgh"[:num_memories]
    memories = tuple(Memory(name, 10**9) for name in names)
    devices = tuple(
        Device(f"cpu.{name}", "cpu", "llvm", 0, index, (index,)) for index, name in enumerate(names)
    )
    return Cluster("box", memories, devices, links, 0)


def report(pairs: list[tuple[int, int]], slowdowns: dict[tuple[int, int], float]) -> LinkReport:
    """Links of equal times; `slowdowns` holds for both directions of a pair of links."""
    links = tuple(LinkMeasurement(src, dst, SLOW, SLOW, None) for src, dst in pairs)
    both = slowdowns | {(two, one): value for (one, two), value in slowdowns.items()}
    every = range(len(links))
    return LinkReport(links, tuple(tuple(both.get((one, two)) for two in every) for one in every))


def test_an_exact_line_has_no_error() -> None:
    times = fit_copies([(10_000, 20_000), (1000, 11_000), (0, 10_000)])
    assert (times.latency_ns, times.bytes_per_second) == (10_000, 1_000_000_000)
    assert times.samples[0] == (0, 10_000)
    assert times.error_ratio == pytest.approx(0, abs=1e-9)
    assert times.measured == ((0, 0), (1000, 1000), (10_000, 10_000))


def test_long_waits_of_small_copies_do_not_hide_that_copies_grow() -> None:
    # Every sum of a small copy and its wait is longer than that of the large one.
    copies_ns = {4: [2, 1, 2], 1_000_000: [100_001, 100_400, 107_000]}
    waits_ns = {4: [6_000_000, 5_900_000, 5_850_000], 1_000_000: [4_000_000, 50_000, 60_000]}
    handed, alone = fit_hand_overs(copies_ns, waits_ns, share=0)
    assert alone.samples == ((4, 1), (1_000_000, 100_001))
    assert handed.samples == ((4, 50_001), (1_000_000, 150_001))
    assert handed.latency_ns == pytest.approx(50_000, abs=2)
    assert handed.bytes_per_second == pytest.approx(10**10, rel=1e-4)


def test_a_copy_and_its_wait_may_be_undisturbed_in_different_runs() -> None:
    copies_ns = {4: [10, 900_000], 1_000_000: [100_010, 900_000]}
    waits_ns = {4: [3_000_000, 40], 1_000_000: [3_000_000, 40]}
    handed, _ = fit_hand_overs(copies_ns, waits_ns, share=0)
    assert handed.samples == ((4, 50), (1_000_000, 100_050))


def test_copies_that_the_clock_does_not_see_last_a_nanosecond() -> None:
    handed, alone = fit_hand_overs({4: [0], 4096: [400]}, {4: [0], 4096: [0]}, share=0.25)
    assert handed.samples == alone.samples == ((4, 1), (4096, 400))


def test_copies_of_one_time_are_refused() -> None:
    with pytest.raises(ClusterError, match="do not grow with their sizes"):
        fit_hand_overs({4: [7], 4096: [7]}, {4: [5], 4096: [9]}, share=0)


def test_the_error_of_a_line_is_relative() -> None:
    times = CopyTimes(((1000, 10_000), (100_000, 110_000)), 10_000, 1_000_000_000)
    # 11,000 and 110,000 ns by the line: 10 % and 0 % off.
    assert times.error_ratio == pytest.approx(0.1 / 2**0.5)


@exact_cases(50)
@given(
    st.lists(
        st.tuples(st.integers(1, 10**8), st.integers(1, 10**9)),
        min_size=2,
        max_size=12,
        unique_by=lambda sample: sample[0],
    )
)
def test_what_a_link_says_never_falls_and_is_a_cluster(samples: list[tuple[int, int]]) -> None:
    times = CopyTimes(tuple(sorted(samples)), 5000, 10**9)
    link = Link("a->b", 0, 1, 10**9, 5000, "a->b", times.measured)
    found = cluster(2, (link,))
    longest = 5000
    for size, sample_ns in times.samples:
        longest = max(longest, sample_ns)
        assert found.transfer_ns((0,), size) == longest


def test_measured_links_have_the_times_of_the_samples() -> None:
    found = with_measured_links(cluster(2), report([(0, 1), (1, 0)], {(0, 1): 1.0}))
    assert [(link.name, link.channel) for link in found.links] == [
        ("a->b", "a->b"),
        ("b->a", "b->a"),
    ]
    assert found.transfer_ns((0,), 1000) == 11_000
    assert found.transfer_ns((0,), 10_000) == 20_000


@pytest.mark.parametrize(
    ("slowdown", "is_shared"), [(SHARED_SLOWDOWN, True), (SHARED_SLOWDOWN - 0.01, False)]
)
def test_links_share_a_channel_from_the_threshold_on(slowdown: float, is_shared: bool) -> None:
    found = with_measured_links(cluster(2), report([(0, 1), (1, 0)], {(0, 1): slowdown}))
    assert (found.links[0].channel == found.links[1].channel) is is_shared
    if is_shared:
        assert found.links[0].channel == "a->b + b->a"


def test_a_channel_of_many_links_has_a_short_name() -> None:
    slow = {(one, two): 2.0 for one in range(6) for two in range(one + 1, 6)}
    found = with_measured_links(cluster(3), report(ordered_pairs(3), slow))
    assert found.channels == ("a->b + 5 more",)


def test_a_link_between_two_that_do_not_share_joins_the_one_it_disturbs_most() -> None:
    # 0 shares with 1 and 1 with 2, but 0 and 2 are independent.
    pairs = [(0, 1), (0, 2), (0, 3)]
    assert report(pairs, {(0, 1): 1.6, (1, 2): 1.9, (0, 2): 1.0}).channels() == (0, 1, 1)
    assert report(pairs, {(0, 1): 1.9, (1, 2): 1.6, (0, 2): 1.0}).channels() == (0, 0, 1)


def test_links_that_were_not_timed_together_are_apart() -> None:
    assert report([(0, 1), (2, 3)], {}).channels() == (0, 1)


def test_the_larger_slowdown_of_two_links_counts() -> None:
    links = report([(0, 1), (0, 2)], {}).links
    assert LinkReport(links, ((None, 1.0), (1.9, None))).channels() == (0, 0)


def test_duplex() -> None:
    found = report([(0, 1), (1, 0), (0, 2)], {(0, 1): 2.0, (0, 2): 1.0, (1, 2): 1.0})
    assert found.duplex_ratio(0) == found.duplex_ratio(1) == 0.5
    assert found.duplex_ratio(2) is None


def test_names_and_links_that_were_not_measured_stay() -> None:
    own = (
        Link("up", 0, 1, 1, 1, "bus"),
        Link("down", 1, 0, 1, 1, "bus"),
        Link("net", 1, 2, 7, 7, "net"),
    )
    found = with_measured_links(cluster(3, own), report([(0, 1), (1, 0)], {(0, 1): 1.0}))
    assert found.links[0] == own[2]
    assert [link.name for link in found.links] == ["net", "up", "down"]
    assert found.links[1].bytes_per_second == SLOW.bytes_per_second


def test_a_report_of_another_cluster_is_refused() -> None:
    with pytest.raises(ClusterError, match="from memory 0 to 2; cluster 'box' has 2 memories"):
        with_measured_links(cluster(2), report([(0, 2)], {}))


def test_routes_of_measured_links_are_the_widest() -> None:
    fast = CopyTimes(((1000, 5000),), 4000, 8 * 10**9)
    measured = [
        LinkMeasurement(0, 1, SLOW, SLOW, None),  # a -> b -> d: 1 GB/s
        LinkMeasurement(1, 3, fast, fast, None),
        LinkMeasurement(0, 2, fast, fast, None),  # a -> c -> d: 8 GB/s
        LinkMeasurement(2, 3, fast, fast, None),
    ]
    none = (None,) * len(measured)
    found = with_measured_links(cluster(4), LinkReport(tuple(measured), (none,) * len(measured)))
    route = found.route(0, 3)
    assert [found.links[link].name for link in route] == ["a->c", "c->d"]
    assert found.transfer_ns(route, 1000) == 4000 + 4000 + 1000
    direct = replace(found, links=(*found.links, Link("direct", 0, 3, 1, 1, "direct")))
    assert [direct.links[link].name for link in direct.route(0, 3)] == ["direct"]


@pytest.mark.parametrize(("names", "alone"), [(("x", "x"), "10.0 us"), (("x", "y"), "")])
def test_a_message_between_hosts_has_no_copy_alone(names: tuple[str, str], alone: str) -> None:
    found = cluster(2, (Link("a-b", 0, 1, 10**9, 100, "a-b"),))
    devices = tuple(
        replace(device, host=name) for device, name in zip(found.devices, names, strict=True)
    )
    table = link_table(replace(found, devices=devices), report([(0, 1)], {}))
    headers, row = table.splitlines()[:2]
    end = headers.index("copy alone") + len("copy alone")
    assert row[:end].endswith(alone.rjust(len("copy alone")))
