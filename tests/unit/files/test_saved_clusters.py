"""Clusters are written to files and read back equal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heteroplace.errors import ClusterError
from heteroplace.files.cluster_file import (
    cluster_from_json,
    cluster_to_json,
    load_cluster,
    save_cluster,
)
from heteroplace.model.cluster import (
    CONGESTION_MODES,
    COPY_ENGINES,
    Cluster,
    Device,
    Link,
    Memory,
)
from tests.strategies import exact_cases
from tests.unit.files.cluster_files import VALIDATOR

NAMES = st.text(min_size=1, max_size=6)


@st.composite
def clusters(draw):
    """Any cluster that a file can hold, reachable from its host (through links both ways)."""
    memory_names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    sizes = st.integers(1, 2**50)
    sizes_of = {name: draw(sizes) for name in memory_names}
    hosts = [draw(st.text(max_size=3)) for _ in memory_names]
    ids = st.integers(0, len(memory_names) - 1)
    optional = st.none() | st.integers(1, 2**60)
    devices = tuple(
        Device(
            name,
            draw(st.sampled_from(["cuda", "vulkan", "npu"])),
            draw(st.sampled_from(["llvm", "cuda -arch=sm_75"])),
            draw(st.integers(0, 9)),
            memory := draw(ids),
            host=hosts[memory],
            flops_per_second=draw(optional),
            memory_bytes_per_second=draw(optional),
            copy_engines=draw(st.sampled_from(COPY_ENGINES)),
            batch_sizes=tuple(sorted(draw(st.sets(st.integers(1, 99), min_size=1, max_size=3)))),
            launch_ns=draw(st.integers(0, 10**9)),
            model=draw(st.text(max_size=3)),
        )
        for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    )
    used = {device.host for device in devices}
    memories = tuple(
        Memory(name, sizes_of[name], host if host in used and draw(st.booleans()) else "")
        for name, host in zip(memory_names, hosts, strict=True)
    )
    ends = [(a, b) for a in range(len(memories)) for b in range(len(memories)) if a != b]
    links = tuple(
        Link(f"l{i}", a, b, draw(sizes), draw(st.integers(0, 10**12)), draw(NAMES))
        for i, (a, b) in enumerate(ends)
    )
    congestion = draw(st.sampled_from(CONGESTION_MODES))
    return Cluster(draw(NAMES), memories, devices, links, draw(st.none() | ids), congestion)


@exact_cases(50)
@given(clusters())
def test_saved_cluster_is_read_back_equal(cluster):
    value = json.loads(json.dumps(cluster_to_json(cluster)))
    assert cluster_from_json(value) == cluster
    VALIDATOR.validate(value)


def test_save_then_load_and_no_stray_files(tmp_path):
    cluster = load_cluster("cpu-two-gpus")
    save_cluster(cluster, tmp_path / "box.json")
    assert load_cluster(tmp_path / "box.json") == cluster
    assert [path.name for path in tmp_path.iterdir()] == ["box.json"]


def test_cluster_that_no_file_can_hold_is_not_saved(tmp_path):
    cluster = Cluster("box", (Memory("1 GB", 1),), (Device("d", "npu", "llvm", 0, 0),))
    with pytest.raises(ClusterError, match="a name that is not also a size"):
        save_cluster(cluster, tmp_path / "box.json")
    assert not list(tmp_path.iterdir())
