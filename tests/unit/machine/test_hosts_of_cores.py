"""Machines, or parts of one, as the hosts of one cluster."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given

from heteroplace.errors import ClusterError
from heteroplace.model.cluster import Cluster, Device, Link, Memory
from heteroplace.model.hosts import on_host
from heteroplace.parts.hosts.machines import (
    MachineShare,
    host_names,
    hosts_of_cores,
    join_hosts,
    part_of,
    share_cores,
)
from tests.corpus import corpus
from tests.strategies import num_cases


def machine(cores: int) -> Cluster:
    devices = tuple(Device(f"cpu.{core}", "cpu", "llvm", 0, 0, (core,)) for core in range(cores))
    gpu = Device("gpu0", "cuda", "cuda", 0, 1)
    links = (Link("up", 0, 1, 10**9, 5, "pcie"), Link("down", 1, 0, 10**9, 5, "pcie"))
    return Cluster(
        "box", (Memory("ram", 1000), Memory("gpu0", 500)), (*devices, gpu), links, host=0
    )


def test_hosts_of_cores_have_a_memory_each_and_links_both_ways() -> None:
    cluster = hosts_of_cores(["a", "b", "c"])
    assert cluster.hosts == ("a", "b", "c")
    assert [cluster.memories[device.memory].host for device in cluster.devices] == ["a", "b", "c"]
    assert all(len(device.cores) == 1 for device in cluster.devices)
    ends = {(link.src, link.dst) for link in cluster.links}
    assert ends == {(src, dst) for src in range(3) for dst in range(3) if src != dst}
    assert cluster.host == 0


def test_a_host_of_joined_ones_is_as_it_was_but_for_names() -> None:
    one, two = machine(1), machine(2)
    joined = join_hosts("both", ["x", "y"], [one, two])
    found = on_host(joined, "y")
    assert [device.name for device in found.devices] == ["cpu.0.y", "cpu.1.y", "gpu0.y"]
    assert [device.memory for device in found.devices] == [0, 0, 1]
    assert [(link.name, link.src, link.dst, link.channel) for link in found.links] == [
        ("up.y", 0, 1, "pcie.y"),
        ("down.y", 1, 0, "pcie.y"),
    ]


def test_hosts_are_linked_by_memories_of_cpus_and_gpus_are_reached_through_them() -> None:
    joined = join_hosts("both", ["x", "y"], [machine(1), machine(1)])
    across = [link for link in joined.links if {link.src, link.dst} == {0, 2}]
    assert [(link.src, link.dst) for link in across] == [(0, 2), (2, 0)]
    assert [link.channel for link in across] == ["x->y", "y->x"]
    names = [joined.links[link].name for link in joined.route(1, 3)]
    assert names == ["down.x", "ram.x->ram.y", "up.y"]


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", ""]])
def test_names_of_hosts_are_different_and_not_empty(names: list[str]) -> None:
    with pytest.raises(ClusterError, match=r"expected different names, one at least"):
        hosts_of_cores(names, [0] * len(names))


def test_each_host_needs_a_core() -> None:
    with pytest.raises(ClusterError, match=r"2 hosts need as many cores, got \[0\]"):
        hosts_of_cores(["a", "b"], [0])


def test_hosts_of_one_machine_share_its_memory() -> None:
    assert [memory.bytes for memory in part_of(machine(1), 4).memories] == [250, 125]


def test_ranks_of_one_machine_share_its_cores_and_bound_ones_keep_theirs() -> None:
    alike = [MachineShare("1", "box", (0, 1, 2))] * 2
    assert share_cores([*alike, MachineShare("2", "node", (0, 1))]) == ((0, 1), (2,), (0, 1))
    bound = [MachineShare("1", "box", (0,)), MachineShare("1", "box", (1,))]
    assert share_cores(bound) == ((0,), (1,))


@corpus
def affinities(random: Random) -> list[list[int]]:
    """Cores that ranks of one machine may run on."""
    num_ranks = random.randint(2, 5)
    return [sorted(random.sample(range(5), random.randint(1, 4))) for _ in range(num_ranks)]


@num_cases(200)
@given(affinities())
def test_ranks_that_share_some_cores_have_none_in_common(own: list[list[int]]) -> None:
    shares = [MachineShare("1", "box", tuple(cores)) for cores in own]
    has_choice = any(len(set(choice)) == len(own) for choice in product(*own))
    if not has_choice:
        with pytest.raises(ClusterError, match=r"\d ranks on 'box' share the cores \["):
            share_cores(shares)
        return
    found = share_cores(shares)
    assert all(cores and set(cores) <= set(its) for cores, its in zip(found, own, strict=True))
    used = [core for cores in found for core in cores]
    assert sorted(used) == sorted({core for its in own for core in its})


def test_the_ranks_that_have_too_few_cores_are_counted() -> None:
    own = [(0,), (0, 1, 2), (0,), (5,)]
    with pytest.raises(ClusterError, match=r"2 ranks on 'box' share the cores \[0\], and each"):
        share_cores([MachineShare("1", "box", cores) for cores in own])


def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(ClusterError, match=r"3 ranks on 'box' share the cores \[0, 1\]"):
        share_cores([MachineShare("1", "box", (0, 1))] * 3)


def test_hosts_are_called_as_their_machine_with_a_number_where_ranks_share_it() -> None:
    box, node = MachineShare("1", "box", (0,)), MachineShare("2", "node", (0,))
    assert host_names([box, node, box]) == ("box.0", "node", "box.1")
