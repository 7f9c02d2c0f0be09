""" "local": this machine, its GPUs too; the driver's answers are those of an A100."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heteroplace.cli.main import main
from heteroplace.files.cluster_file import load_cluster
from heteroplace.machine import local
from heteroplace.machine.local import local_cluster, open_cluster
from tests.unit.machine.machines import A100


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the GPU that is in this machine."""
    monkeypatch.setattr(local, "read_gpus", lambda: (A100,))
    return f"gpu{A100.index}"


def test_local_is_the_cpu_and_the_gpus(gpu: str) -> None:
    cluster = open_cluster("local")
    cpu = local_cluster(has_gpus=False)
    assert cluster.devices[: len(cpu.devices)] == cpu.devices
    (found,) = cluster.devices[len(cpu.devices) :]
    assert (found.name, found.kind, found.target) == (gpu, "cuda", A100.target)
    assert cluster.memories[found.memory].bytes == A100.memory_bytes
    for src, dst in ((cluster.host, found.memory), (found.memory, cluster.host)):
        (link,) = cluster.route(src, dst)
        assert cluster.links[link].bytes_per_second == A100.pcie_bytes_per_second


def test_without_gpus_local_is_the_cpu() -> None:
    assert open_cluster("local") == local_cluster(has_gpus=False)


def test_other_names_are_clusters_of_their_own() -> None:
    assert open_cluster("cpu-two-gpus") == load_cluster("cpu-two-gpus")


def test_place_knows_this_machine(
    gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {device.name: 9 if device.kind == "cuda" else 99 for device in local_cluster().devices}
    task = {"name": "a", "op": "conv", "times_ns": times}
    graph = {"schema_version": 1, "name": "one", "tasks": [task], "tensors": [], "outputs": []}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    command = ["place", "--graph", str(tmp_path / "graph.json"), "--cluster", "local", "--json"]
    assert main([*command, "--solver", "single"]) == 0
    assert json.loads(capsys.readouterr().out)["placement"] == {"a": [gpu]}
