"""GPUs as several devices each: memories, links, and who may run beside whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import cluster_from_json, cluster_to_json
from heteroplace.machine.gpu_parts import split_gpus
from heteroplace.model.cluster import Cluster, Device, Link, Memory


def core_and_two_gpus() -> Cluster:
    links = [
        Link(f"{src}->{dst}", src, dst, 10**10, 1000, f"wire{src}{dst}")
        for src in range(3)
        for dst in range(3)
        if src != dst
    ]
    return Cluster(
        "c",
        (Memory("ram", 8 << 30), Memory("gpu0", 4 << 30), Memory("gpu1", 3 << 30)),
        (
            Device("cpu.0", "cpu", "llvm", 0, 0, (0,)),
            Device("gpu0", "cuda", "cuda -arch=sm_80", 0, 1),
            Device("gpu1", "cuda", "cuda -arch=sm_80", 1, 2),
        ),
        tuple(links),
        0,
    )


def test_parts_run_at_once_and_have_their_share_of_the_memory() -> None:
    cluster = split_gpus(core_and_two_gpus(), 2)
    assert [device.name for device in cluster.devices] == [
        "cpu.0",
        "gpu0.0",
        "gpu0.1",
        "gpu1.0",
        "gpu1.1",
    ]
    assert [device.units for device in cluster.devices[1:]] == [
        ("/cuda0",),
        ("/cuda0.1",),
        ("/cuda1",),
        ("/cuda1.1",),
    ]
    assert [memory.bytes >> 29 for memory in cluster.memories] == [16, 4, 4, 3, 3]
    assert cluster.host == 0


def test_wires_are_shared_by_the_parts_and_copies_on_a_card_are_not() -> None:
    cluster = split_gpus(core_and_two_gpus(), 2)
    channels = {(link.src, link.dst): link.channel for link in cluster.links}
    assert len(channels) == len(cluster.links) == 5 * 4
    assert channels[0, 1] == channels[0, 2] == "wire01"
    assert channels[1, 3] == channels[2, 4] == "wire12"
    assert channels[1, 2] == "gpu0.0->gpu0.1"
    assert channels[2, 1] == "gpu0.1->gpu0.0"


def test_a_file_keeps_the_parts() -> None:
    cluster = split_gpus(core_and_two_gpus(), 3)
    assert cluster_from_json(cluster_to_json(cluster)) == cluster
    assert split_gpus(core_and_two_gpus(), 1) == core_and_two_gpus()
    assert "part" not in str(cluster_to_json(core_and_two_gpus()))


def test_what_cannot_be_split_is_named() -> None:
    cluster = core_and_two_gpus()
    with pytest.raises(ClusterError, match="a GPU in 0 parts"):
        split_gpus(cluster, 0)
    with pytest.raises(ClusterError, match=r"'gpu0\.1' shares its memory|is a part of a GPU"):
        split_gpus(split_gpus(cluster, 2), 2)
    shared = replace(cluster.devices[2], memory=1)
    with pytest.raises(ClusterError, match="shares its memory with another one"):
        split_gpus(replace(cluster, devices=(*cluster.devices[:2], shared)), 2)


def test_a_cpu_has_no_parts() -> None:
    cluster = core_and_two_gpus()
    parted = replace(cluster.devices[0], part=1)
    with pytest.raises(ClusterError, match=r"'cpu\.0': part must be >= 0, and 0 for a CPU, got 1"):
        replace(cluster, devices=(parted, *cluster.devices[1:]))
    value = cluster_to_json(cluster)
    value["devices"][0]["part"] = 2  # type: ignore[index]
    with pytest.raises(ClusterError, match=r"devices\[0\]\.part: only GPUs have parts"):
        cluster_from_json(value)
