"""What collectives take: rings, roots, memories in common, fitted figures, kinds from outside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.collectives import (
    KINDS,
    CollectiveCosts,
    CollectiveKind,
    collective_kind,
    collective_ns,
    collective_op,
    edges,
    register_collective,
)

MIB = 2**20


def cluster_of(
    count: int, bytes_per_second: int = 25 * 10**9, latency_ns: int = 0, **device: object
) -> Cluster:
    """Devices with a memory each, all linked."""
    return Cluster(
        "all",
        tuple(Memory(f"m{i}", 2**40) for i in range(count)),
        tuple(Device(f"d{i}", "cuda", "", i, i, **device) for i in range(count)),  # type: ignore[arg-type]
        tuple(
            Link(f"{src}-{dst}", src, dst, bytes_per_second, latency_ns, f"{src}-{dst}")
            for src in range(count)
            for dst in range(count)
            if src != dst
        ),
    )


def kind_of(name: str) -> CollectiveKind:
    kind = collective_kind(collective_op(name))
    assert kind is not None
    return kind


def ns(name: str, cluster: Cluster, num_bytes: int, root: int = 0, **fitted: object) -> int:
    devices = tuple(range(len(cluster.devices)))
    return collective_ns(cluster, kind_of(name), num_bytes, devices, root, **fitted)  # type: ignore[arg-type]


def test_an_all_reduce_of_64_mib_over_8_devices_takes_what_is_known() -> None:
    # 2 * 7 / 8 * 2**26 bytes at 25 GB/s are 4.69762048e-3 s.
    assert ns("all_reduce", cluster_of(8), 64 * MIB) == 4_697_621


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all_reduce", 2 * 3 * 100 + 2 * 3 * 5),
        ("all_gather", 3 * 100 + 3 * 5),
        ("reduce_scatter", 3 * 100 + 3 * 5),
        ("all_to_all", 3 * 100 + 3 * 5),
        ("reduce", 3 * (400 + 5)),
        ("broadcast", 3 * (400 + 5)),
        ("gather", 3 * (100 + 5)),
        ("scatter", 3 * (100 + 5)),
    ],
)
def test_each_kind_takes_its_rounds(name: str, expected: int) -> None:
    """400 bytes over four devices at a byte per ns, 5 ns of latency."""
    assert ns(name, cluster_of(4, 10**9, 5), 400, 2) == expected


@pytest.mark.parametrize("name", list(KINDS))
def test_devices_of_one_memory_cost_the_sums_alone(name: str) -> None:
    cluster = cluster_of(4, 10**9, 5, memory_bytes_per_second=2 * 10**9, launch_ns=7)
    cluster = replace(
        cluster, devices=tuple(replace(device, memory=0) for device in cluster.devices)
    )
    sums = 4 * 400 // 2 if kind_of(name).sums else 0
    assert ns(name, cluster, 400) == sums + 7
    assert not edges(cluster, kind_of(name), (0, 1, 2, 3))


def test_sums_and_starts_go_by_the_slowest_device() -> None:
    cluster = cluster_of(2, 10**9, memory_bytes_per_second=None)
    slow = replace(cluster.devices[1], memory_bytes_per_second=10**9, launch_ns=9)
    cluster = replace(cluster, devices=(cluster.devices[0], slow))
    assert ns("all_reduce", cluster, 100) == 100 + 200 + 9
    assert ns("all_gather", cluster, 100) == 50 + 9


def test_the_slowest_link_of_the_ring_is_the_pace_of_all() -> None:
    cluster = cluster_of(3, 10**9)
    links = [
        replace(link, bytes_per_second=10**8) if link.name == "1-2" else link
        for link in cluster.links
    ]
    cluster = replace(cluster, links=tuple(links))
    assert ns("all_reduce", cluster, 300) == 4000
    # Another order of ranks goes round it.
    assert collective_ns(cluster, kind_of("all_reduce"), 300, (0, 2, 1)) == 400


def test_measured_transfers_are_of_one_round_each() -> None:
    cluster = cluster_of(2, 10**9)
    links = tuple(replace(link, measured=((50, 500), (1000, 1000))) for link in cluster.links)
    assert ns("all_reduce", replace(cluster, links=links), 100) == 2 * 500


def test_a_ring_needs_routes() -> None:
    cluster = cluster_of(3)
    links = tuple(link for link in cluster.links if link.name in ("0-1", "1-2"))
    with pytest.raises(ClusterError, match="no link leads from memory 'm2' to 'm0'"):
        ns("all_reduce", replace(cluster, links=links), 8)
    assert ns("broadcast", replace(cluster, links=links), 25) == 1 + 1


def test_fitted_times_count_before_all_else() -> None:
    fitted = CollectiveCosts((("all_reduce", 2, 0.5, 10.2), ("all_reduce", 4, 1.0, 0.0)))
    cluster = cluster_of(2, 10**9, launch_ns=7)
    assert ns("all_reduce", cluster, 100, fitted=fitted) == 61
    assert ns("all_gather", cluster, 100, fitted=fitted) == 57


def test_a_kind_may_come_from_outside() -> None:
    kind = CollectiveKind("swap", "each", "each")
    register_collective(kind, lambda cluster, num_bytes, devices, root: 3 * num_bytes)
    try:
        assert collective_kind("heteroplace.swap") == kind
        assert ns("swap", cluster_of(2), 5) == 15
    finally:
        del KINDS["swap"]


def test_names_of_other_ops_are_no_collectives() -> None:
    assert collective_kind("gather") is None
    assert collective_kind("heteroplace.other") is None
    assert set(KINDS) == {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("reduce", "broadcast", "scatter", "gather"),
    }
