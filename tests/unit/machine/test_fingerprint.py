"""Fingerprints are equal for the same processor on another day, and differ for another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heteroplace.errors import ClusterError, MissingPackageError
from heteroplace.machine import fingerprint
from heteroplace.machine.cuda_driver import cuda_description
from heteroplace.machine.fingerprint import (
    cpu_fingerprint,
    device_fingerprint,
    gpu_fingerprint,
    gpu_fingerprint_of,
)
from heteroplace.machine.gpu import has_nvidia_driver
from heteroplace.model.cluster import Device
from tests.unit.machine.machines import (
    A100,
    ARM_BOARD,
    DESKTOP,
    FakeDriver,
    Machine,
    write_machine,
)


def of(root: Path, machine: Machine, cores: tuple[int, ...] = (0,)) -> str:
    return cpu_fingerprint(cores, write_machine(root, machine))


def test_of_x86_in_full(tmp_path: Path) -> None:
    assert of(tmp_path, DESKTOP) == (
        "Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz (family 6 model 85 stepping 4); "
        "microcode 0x2007006; 2.10 GHz, L1d 32K, L2 1024K"
    )


def test_of_arm_in_full_with_both_kinds_of_cores(tmp_path: Path) -> None:
    assert of(tmp_path, ARM_BOARD, (0, 1, 2, 3)) == (
        "(implementer 0x41 architecture 8 variant 0x3 part 0xd0c revision 1); 1.50 GHz and 2.00 GHz"
    )
    assert of(tmp_path, ARM_BOARD, (3,)).endswith("; 2.00 GHz")


def test_the_clock_of_the_moment_does_not_matter(tmp_path: Path) -> None:
    today = of(tmp_path / "today", DESKTOP)
    # The counter's rate is measured at every start of the machine.
    assert of(tmp_path / "later", replace(DESKTOP, mhz="3456.789", bogomips="4200.31")) == today


@pytest.mark.parametrize(
    "other",
    [
        replace(DESKTOP, bogomips="5000.00"),
        replace(DESKTOP, caches=((2, "Unified", "2048K"),)),
        replace(DESKTOP, cpuinfo=DESKTOP.cpuinfo.replace("0x2007006", "0x2007007")),
        replace(DESKTOP, max_khz=dict.fromkeys(range(4), 3_700_000)),
    ],
    ids=["clock", "caches", "microcode", "largest clock"],
)
def test_what_matters_is_in_it(tmp_path: Path, other: Machine) -> None:
    assert of(tmp_path / "other", other) != of(tmp_path / "one", DESKTOP)


def test_a_machine_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not say what the processor is"):
        cpu_fingerprint((0,), tmp_path)


def test_of_a_gpu_in_full() -> None:
    assert gpu_fingerprint_of(A100) == (
        "NVIDIA A100-SXM4-40GB; compute capability 8.0; 6912 cores; 1410 MHz, memory 1215 MHz; "
        "40960 MiB; driver 535.104.05"
    )


def test_of_devices() -> None:
    device = Device("cpu.0", "cpu", "llvm", 0, 0, (0,))
    assert device_fingerprint(device) == cpu_fingerprint((0,))
    with pytest.raises(ClusterError, match="on host 'far'; its fingerprint is taken there"):
        device_fingerprint(replace(device, host="far"))
    with pytest.raises(ClusterError, match="of kind 'npu'; only cpu and cuda"):
        device_fingerprint(Device("npu", "npu", "", 0, 0))


def test_without_nvml_a_gpu_is_what_cuda_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingPackageError("no nvidia-ml-py")

    monkeypatch.setattr(fingerprint, "read_gpus", missing)
    monkeypatch.setattr(
        fingerprint, "cuda_description", lambda index: cuda_description(index, FakeDriver())
    )
    assert device_fingerprint(Device("gpu", "cuda", "cuda", 0, 0)) == (
        "NVIDIA X; compute capability 9; minor 0; multiprocessors 132; clock kHz 1980000; "
        "memory clock kHz 2619000; 5120 MiB; CUDA driver 12040"
    )


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGet", "cuDeviceGetAttribute"])
def test_a_gpu_that_cuda_does_not_describe_is_an_error(failing: str) -> None:
    with pytest.raises(ClusterError, match=r"does not describe GPU 3 \(error 101\)"):
        cuda_description(3, FakeDriver(failing))


@pytest.mark.skipif(has_nvidia_driver(), reason="this machine has GPUs")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ClusterError, match="GPU cuda:0 does not exist; this machine has 0"):
        gpu_fingerprint(0)
