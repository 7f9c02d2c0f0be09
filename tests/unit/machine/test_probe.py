"""The CPU of this machine as a cluster."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.machine.probe import local_cpu_cluster, split_cores


def test_all_cores_of_this_process_are_one_device():
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    cluster = local_cpu_cluster("llvm")
    device = cluster.devices[-1]
    assert (device.name, device.cores, device.target) == ("cpu.all", allowed, "llvm")
    assert cluster.host == 0
    assert cluster.memories[0].bytes > 2**20


def test_parts_cover_the_cores_and_share_them_with_the_whole():
    cluster = local_cpu_cluster("llvm")
    *parts, whole = cluster.devices
    if len(whole.cores) > 1:
        assert sum((part.cores for part in parts), ()) == whole.cores
        assert parts[0].name == "cpu.0"
    assert set(cluster.units) == {f"/core{core}" for core in whole.cores}


def test_one_core_is_one_device():
    core = min(os.sched_getaffinity(0))
    cluster = local_cpu_cluster("llvm", [core])
    assert [(device.name, device.cores) for device in cluster.devices] == [("cpu.all", (core,))]


@pytest.mark.parametrize("cores", [[], [10**6], [0, 0]])
def test_cores_that_cannot_be_used_are_refused(cores):
    with pytest.raises(ClusterError, match="out of the cores that this process may run on"):
        local_cpu_cluster("llvm", cores)


@given(st.lists(st.integers(0, 999), min_size=1, unique=True), st.integers(1, 20))
def test_groups_are_balanced(cores, max_parts):
    groups = split_cores(cores, max_parts)
    assert sum(groups, ()) == tuple(cores)
    assert len(groups) == min(max_parts, len(cores))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_it_can_be_saved(tmp_path):
    cluster = local_cpu_cluster("llvm -mcpu=native")
    save_cluster(cluster, tmp_path / "here.json")
    assert load_cluster(tmp_path / "here.json") == cluster
