"""Hosts of a cluster: whose devices and memories they are, in which order, and their parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import load_cluster, ready_made_clusters
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.hosts import feeding_rank, on_host, with_devices
from heteroplace.model.text import parse_cluster, print_cluster
from heteroplace.run.missing_devices import missing_devices

PAIR = Cluster(
    "pair",
    (Memory("ram.a", 100), Memory("ram.b", 200, "b"), Memory("gram.b", 300)),
    (
        Device("b.cpu", "cpu", "llvm", 0, 1, (0,), host="b"),
        Device("a.cpu", "cpu", "llvm", 0, 0, (0,), host="a"),
        Device("b.gpu", "cuda", "cuda -arch=sm_80", 0, 2, host="b"),
    ),
    (Link("eth", 0, 1, 10, 10, "eth"), Link("up", 1, 2, 10, 10, "up")),
    0,
)


def test_hosts_are_in_order_of_first_mention_by_devices() -> None:
    assert PAIR.memory_hosts == ("a", "b", "b")
    assert PAIR.hosts == ("b", "a")
    assert feeding_rank(PAIR) == 1


def test_a_memory_without_devices_is_on_the_only_host_or_on_the_one_without_a_name() -> None:
    disk = Memory("disk", 1)
    assert replace(PAIR, memories=(*PAIR.memories, disk)).memory_hosts[3] == ""
    assert replace(PAIR, memories=(*PAIR.memories, disk)).hosts == ("b", "a", "")
    alone = Cluster("a", (PAIR.memories[0], disk), (replace(PAIR.devices[1], memory=0),))
    assert alone.memory_hosts == ("a", "a")


def test_devices_of_one_memory_on_two_hosts_are_refused() -> None:
    apart = replace(PAIR.devices[2], memory=0)
    with pytest.raises(ClusterError, match=r"'b\.gpu' is on host 'b', and its memory 'ram\.a'"):
        replace(PAIR, devices=(PAIR.devices[1], apart))


def test_the_text_form_says_hosts_of_memories() -> None:
    text = print_cluster(PAIR)
    assert "memory ram.b 200 B host b\n" in text
    assert parse_cluster(text) == PAIR


def test_a_host_changes_the_digest_and_its_absence_does_not() -> None:
    named = replace(PAIR.memories[0], host="a")
    assert replace(PAIR, memories=(named, *PAIR.memories[1:])).digest() != PAIR.digest()
    # As it was before memories had hosts.
    known = replace(load_cluster("moirai-inter-server"), congestion="channel")
    assert known.digest() == "6c322bccd409c652"


def test_the_part_on_a_host_has_no_name() -> None:
    part = on_host(PAIR, "b")
    assert [memory.name for memory in part.memories] == ["ram.b", "gram.b"]
    assert [(device.name, device.memory) for device in part.devices] == [("b.cpu", 0), ("b.gpu", 1)]
    assert [(link.name, link.src, link.dst) for link in part.links] == [("up", 0, 1)]
    assert (part.hosts, part.host) == (("",), 0)
    assert on_host(PAIR, "a").host == 0


def test_ready_made_clusters_of_one_machine_are_their_only_part() -> None:
    for cluster in map(load_cluster, ready_made_clusters()):
        if cluster.hosts == ("",) and cluster.host is not None:
            assert on_host(cluster, "") == cluster


def test_memories_forget_a_host_without_devices() -> None:
    part = with_devices(PAIR, [1])
    assert part.memories[1] == Memory("ram.b", 200)
    assert part.devices == (PAIR.devices[1],)


def test_a_rank_misses_only_devices_of_its_own_host() -> None:
    far = replace(PAIR, devices=tuple(replace(d, cores=()) for d in PAIR.devices[:2]))
    names = [device.name for device in far.devices]
    assert missing_devices(far, names, "a") == []
    odd = replace(far, devices=(replace(far.devices[0], kind="npu"), far.devices[1]))
    assert missing_devices(odd, names, "a") == []
    assert missing_devices(odd, names, "b") == ["b.cpu (kind 'npu'; only CPUs and GPUs can run)"]
    assert missing_devices(far, names) == [
        "b.cpu (on host 'b'; a process alone runs its own machine)",
        "a.cpu (on host 'a'; a process alone runs its own machine)",
    ]
