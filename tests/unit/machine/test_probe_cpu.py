"""Processors, NUMA nodes and limits, read from the files of several machines."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.control_groups import usable_cores
from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.machine.cpu import CpuInfo, last_cache_bytes, parse_list, read_cpus, with_siblings
from heteroplace.machine.probe import MAX_PARTS, machine_cluster
from heteroplace.solve import SolveOptions
from tests.unit.machine.machines import A100, ARM_BOARD, DESKTOP, SERVER, Machine, write_machine

GIB = 1 << 30


def read(root: Path, machine: Machine, allowed: range | list[int] = range(16)) -> CpuInfo:
    return read_cpus(write_machine(root, machine), allowed)


def test_one_socket_without_hardware_threads(tmp_path: Path) -> None:
    cpu = read(tmp_path, DESKTOP)
    assert (cpu.num_sockets, cpu.first_threads) == (1, (0, 1, 2, 3))
    assert [(node.bytes, node.threads) for node in cpu.nodes] == [(16 * GIB, (0, 1, 2, 3))]
    assert cpu.model == "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz"
    assert (cpu.memory_bytes, cpu.is_limited, cpu.quota_cores) == (16 * GIB, False, None)
    assert cpu.warnings() == []


def test_two_sockets_with_hardware_threads_and_nodes(tmp_path: Path) -> None:
    cpu = read(tmp_path, SERVER)
    assert (cpu.num_sockets, len(cpu.threads)) == (2, 16)
    assert cpu.first_threads == tuple(range(8))
    assert cpu.threads[9].siblings == (1, 9)
    assert with_siblings({1, 12}, tmp_path) == {1, 9, 4, 12}
    assert [(node.number, node.bytes) for node in cpu.nodes] == [(0, 64 * GIB), (1, 32 * GIB)]
    assert cpu.nodes[1].threads == (4, 5, 6, 7, 12, 13, 14, 15)


def test_only_the_cpuset_of_a_container_counts(tmp_path: Path) -> None:
    cpu = read(tmp_path, SERVER, allowed=[9, 2, 5])
    assert [thread.number for thread in cpu.threads] == [2, 5, 9]
    # Of core (1, 9) only the second hardware thread may be used.
    assert cpu.first_threads == (2, 5, 9)
    assert [node.threads for node in cpu.nodes] == [(2, 9), (5,)]


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/\n", {"memory.max": str(3 * GIB), "cpu.max": "150000 100000"}),
        (
            "0::/box/inner\n",
            {
                "box/inner/memory.max": "max",
                "box/inner/cpu.max": "max 100000",
                "box/memory.max": str(3 * GIB),
                "box/cpu.max": "150000 100000",
            },
        ),
        (
            "4:memory:/box\n3:cpu,cpuacct:/box\n",
            {
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
                "memory/box/memory.limit_in_bytes": str(3 * GIB),
                "cpu,cpuacct/box/cpu.cfs_quota_us": "75000",
                "cpu,cpuacct/box/cpu.cfs_period_us": "50000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            },
        ),
        (
            "4:memory:/docker/of-the-host\n3:cpu:/docker/of-the-host\n",
            {
                "memory/memory.limit_in_bytes": str(3 * GIB),
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "100000",
            },
        ),
    ],
    ids=["version 2", "version 2, the group around", "version 1", "path of the host"],
)
def test_limits_of_a_container(tmp_path: Path, groups: str, limits: dict[str, str]) -> None:
    cpu = read(tmp_path, replace(DESKTOP, groups=groups, limits=limits))
    assert (cpu.memory_bytes, cpu.is_limited, cpu.quota_cores) == (3 * GIB, True, 1.5)
    (warning,) = cpu.warnings()
    assert "1.5 cores' worth of time, and has 4 cores" in warning


def test_an_arm_board_has_no_nodes_and_no_name(tmp_path: Path) -> None:
    cpu = read(tmp_path, ARM_BOARD)
    assert (cpu.model, cpu.num_sockets) == ("", 1)
    assert [(node.number, node.bytes) for node in cpu.nodes] == [(0, 4 * GIB)]
    assert "powersave" in cpu.warnings()[0]


def test_a_processor_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    write_machine(tmp_path, DESKTOP)
    with pytest.raises(ClusterError, match=r"none of the cores \[77\] is online"):
        read_cpus(tmp_path, [77])
    (tmp_path / "proc/meminfo").unlink()
    (tmp_path / "sys/devices/system/node/node0/meminfo").unlink()
    with pytest.raises(ClusterError, match="does not tell the memory's size"):
        read_cpus(tmp_path, [0])


def test_this_machine_is_read() -> None:
    cpu = read_cpus()
    assert {thread.number for thread in cpu.threads} == os.sched_getaffinity(0)
    assert cpu.memory_bytes > 2**20


def test_a_node_is_a_memory_with_devices_of_its_own(tmp_path: Path) -> None:
    cluster = machine_cluster(read(tmp_path, SERVER), (), "llvm")
    assert [(memory.name, memory.bytes) for memory in cluster.memories] == [
        ("ram.0", 64 * GIB),
        ("ram.1", 32 * GIB),
    ]
    assert {device.name: (device.memory, device.cores) for device in cluster.devices} == {
        **{f"cpu.{core}": (core // 4, (core,)) for core in range(8)},
        "cpu.node0": (0, (0, 1, 2, 3)),
        "cpu.node1": (1, (4, 5, 6, 7)),
    }
    assert [link.name for link in cluster.links] == ["ram.0->ram.1", "ram.1->ram.0"]
    assert cluster.host == 0


def test_cores_copy_between_nodes_where_no_gpu_needs_them_free(tmp_path: Path) -> None:
    cpu = read(tmp_path, SERVER)
    cluster = machine_cluster(cpu, (), "llvm")
    copying = [cluster.copying_device(link.src, link.dst) for link in cluster.links]
    assert [cluster.devices[found].name for found in copying if found is not None] == [
        "cpu.4",
        "cpu.0",
    ]
    beside = machine_cluster(cpu, (A100,), "llvm")
    assert {beside.copying_device(link.src, link.dst) for link in beside.links} == {None}
    assert cluster.links[0].latency_ns < beside.links[0].latency_ns


def test_nodes_of_many_cores_share_the_parts(tmp_path: Path) -> None:
    sockets = [[[core] for core in range(start, start + 24)] for start in (0, 24)]
    cpu = read(tmp_path, Machine(sockets, node_gib=[8, 8]), range(48))
    names = [device.name for device in machine_cluster(cpu, (), "llvm").devices]
    assert names == [
        *(f"cpu.{part}" for part in range(MAX_PARTS // 2)),
        "cpu.node0",
        *(f"cpu.{part}" for part in range(MAX_PARTS // 2, MAX_PARTS)),
        "cpu.node1",
    ]


def test_one_node_is_as_local_cpu_cluster_has_it(tmp_path: Path) -> None:
    cluster = machine_cluster(read(tmp_path, DESKTOP), (), "llvm")
    assert [(device.name, device.cores) for device in cluster.devices] == [
        ("cpu.0", (0,)),
        ("cpu.1", (1,)),
        ("cpu.2", (2,)),
        ("cpu.3", (3,)),
        ("cpu.all", (0, 1, 2, 3)),
    ]
    assert (cluster.memories[0].name, cluster.links) == ("ram", ())


def test_named_cores_may_be_hardware_threads_and_leave_out_nodes(tmp_path: Path) -> None:
    cluster = machine_cluster(read(tmp_path, SERVER), (), "llvm", cores=[1, 9])
    assert [memory.name for memory in cluster.memories] == ["ram"]
    assert cluster.devices[-1].cores == (1, 9)
    with pytest.raises(ClusterError, match="out of the cores that this process may run on"):
        machine_cluster(read(tmp_path, SERVER), (), "llvm", cores=[1, 99])


def test_the_limit_of_a_container_is_shared_by_its_nodes(tmp_path: Path) -> None:
    cpu = read(tmp_path, replace(SERVER, limits={"memory.max": str(24 * GIB)}))
    cluster = machine_cluster(cpu, (), "llvm")
    assert [memory.bytes for memory in cluster.memories] == [16 * GIB, 8 * GIB]
    one = machine_cluster(cpu, (), "llvm", cores=[0, 1])
    assert one.memories[0].bytes == 24 * GIB


@pytest.mark.parametrize("machine", [DESKTOP, SERVER, ARM_BOARD])
def test_every_machine_can_be_saved(tmp_path: Path, machine: Machine) -> None:
    cluster = machine_cluster(read(tmp_path, machine), (), "llvm")
    save_cluster(cluster, tmp_path / "machine.json")
    assert load_cluster(tmp_path / "machine.json") == cluster


@pytest.mark.parametrize(
    ("text", "numbers"), [("", []), ("3", [3]), ("0-2,5,7-8\n", [0, 1, 2, 5, 7, 8])]
)
def test_lists_of_the_kernel(text: str, numbers: list[int]) -> None:
    assert parse_list(text) == numbers


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", None), ("150000 100000", 1), ("20000 100000", 1)]
)
def test_threads_are_the_cores_that_the_process_may_really_use(
    tmp_path: Path, quota: str, cores: int | None
) -> None:
    write_machine(tmp_path, replace(DESKTOP, limits={"cpu.max": quota}))
    allowed = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == (allowed if cores is None else min(cores, allowed))


def test_a_solver_has_as_many_threads_as_there_are_cores() -> None:
    assert SolveOptions().threads == usable_cores()


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ("0::/\n", ("memory.max", "cpu.max")),
        ("4:memory:/\n3:cpu:/\n", ("memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us")),
    ],
)
def test_a_limit_that_may_not_be_read_is_none(
    tmp_path: Path, groups: str, names: tuple[str, ...]
) -> None:
    cpu = read(tmp_path, replace(DESKTOP, groups=groups, limits=dict.fromkeys(names, "")))
    assert (cpu.is_limited, cpu.quota_cores) == (False, None)


def test_the_largest_cache_of_a_core(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == 32 << 20
    for index, size in enumerate(("48K", "2048K", "96M")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
    assert last_cache_bytes(tmp_path) == 96 << 20
