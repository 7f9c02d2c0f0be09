"""`heteroplace probe` without measuring: tables, files, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from heteroplace.cli.main import MISSING_PACKAGE, WRONG_INPUT, main
from heteroplace.cli.probe_command import describe_core_to_core, describe_cpu, describe_gpu
from heteroplace.errors import MissingPackageError
from heteroplace.files.cluster_file import load_cluster
from heteroplace.machine.cpu import read_cpus
from heteroplace.machine.local import local_cluster
from heteroplace.machine.probe import machine_cluster
from tests.programs import run_python
from tests.unit.machine.machines import A100, DESKTOP, SERVER, write_machine
from tests.unit.test_import_without_tvm import HIDE_TVM

QUIET = ["probe", "--no-links", "--cpu-only"]


def test_it_writes_a_cluster_that_check_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.json"
    assert main([*QUIET, "-o", str(path)]) == 0
    assert f"written: {path}" in capsys.readouterr().out
    cores = {core for device in load_cluster(str(path)).devices for core in device.cores}
    assert cores <= os.sched_getaffinity(0)
    assert main(["check", str(path)]) == 0


def test_the_cluster_may_be_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--no-links", "--cluster", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == local_cluster().name


def test_a_file_is_not_overwritten_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.json"
    path.write_text("mine")
    assert main([*QUIET, "-o", str(path)]) == WRONG_INPUT
    assert f"{path} exists already; give another name, or --force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert main([*QUIET, "--force", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["name"] == "local"


def test_a_folder_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUIET, "-o", str(tmp_path / "no" / "here.json")]) == WRONG_INPUT
    assert "does not exist; make it first" in capsys.readouterr().err


def test_cores_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    core = min(os.sched_getaffinity(0))
    assert main([*QUIET, "--cores", str(core)]) == 0
    assert f"cpu.all  cores {core} " in capsys.readouterr().out
    assert main([*QUIET, "--cores", "100000"]) == WRONG_INPUT
    assert "out of the cores that this process may run on" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*QUIET, "--cores", "one"])
    assert "'one' is no list of cores such as '0-3,8'" in capsys.readouterr().err


def test_gpus_are_asked_for_only_if_the_given_cluster_has_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise MissingPackageError("nvidia-ml-py is not here")

    path = tmp_path / "here.json"
    assert main([*QUIET, "-o", str(path)]) == 0
    monkeypatch.setattr("heteroplace.cli.probe_command.read_gpus", refuse)
    assert main(["probe", "--no-links", "--cluster", str(path)]) == 0
    assert main(["probe", "--no-links", "--cluster", "moirai-inter-server"]) == MISSING_PACKAGE


def test_links_of_a_given_cluster_are_said_not_to_be_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["probe", "--no-links", "--cluster", "moirai-inter-server"]) == 0
    assert "nothing is measured" in capsys.readouterr().out
    assert main(["probe", "--cluster", "moirai-inter-server", "--cpu-only"]) == WRONG_INPUT
    assert main(["probe", "--cluster", "moirai-inter-server", "--gpu-parts", "2"]) == WRONG_INPUT


PROBE_WITHOUT_TVM = """
from heteroplace.cli.main import main
print([main(["probe", "--cpu-only"]), main(["probe", "--cpu-only", "--no-links"])])
print("tvm" in sys.modules)
"""


def test_without_tvm_only_measuring_is_refused() -> None:
    *_, codes, is_loaded = run_python(HIDE_TVM + PROBE_WITHOUT_TVM, "-W", "error").splitlines()
    assert (codes, is_loaded) == (f"[{MISSING_PACKAGE}, 0]", "False")


def test_a_server_in_full(tmp_path: Path) -> None:
    cpu = read_cpus(write_machine(tmp_path, SERVER), range(16))
    lines = describe_cpu(cpu, machine_cluster(cpu, (), "llvm")).splitlines()
    assert lines[0] == (
        "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz: 2 sockets, 8 cores, 16 hardware threads, "
        "2 NUMA nodes, memory 96.0 GiB"
    )
    assert lines[2:4] == [
        "node 0: 64.0 GiB, hardware threads 0-3,8-11",
        "node 1: 32.0 GiB, hardware threads 4-7,12-15",
    ]
    assert lines[4].startswith("note: hardware threads 8-15 are left out")


def test_a_desktop_has_no_notes(tmp_path: Path) -> None:
    cpu = read_cpus(write_machine(tmp_path, DESKTOP), range(4))
    text = describe_cpu(cpu, machine_cluster(cpu, (), "llvm"))
    assert "1 socket, 4 cores, 4 hardware threads, 1 NUMA node, memory 16.0 GiB" in text
    assert "note" not in text


def test_a_gpu_and_core_latencies() -> None:
    assert describe_gpu(A100).startswith(
        "cuda:0: NVIDIA A100-SXM4-40GB, 40.0 GiB, PCI Express 4 x16, 12 NVLinks to cuda:1\n"
    )
    assert (
        describe_core_to_core(0, 1, 60) == "cores 0 and 1: 60 ns for a cache line, near neighbours"
    )
    assert "not near" in describe_core_to_core(0, 1, 180)
