"""GPUs as the driver describes them. No GPU is here: the answers are those of an A100-SXM4 machine
and of a desktop card, by their data sheets, given at the border to the driver's library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from heteroplace.errors import ClusterError, MissingPackageError
from heteroplace.files.cluster_file import load_cluster, save_cluster
from heteroplace.machine import gpu as machine_gpu
from heteroplace.machine.cpu import read_cpus
from heteroplace.machine.cuda_driver import cuda_bus_ids
from heteroplace.machine.gpu import GpuInfo, has_nvidia_driver, read_gpus
from heteroplace.machine.probe import machine_cluster
from tests.unit.machine.machines import A100, DESKTOP, DESKTOP_CARD, FakeDriver, write_machine


class AnswerError(Exception):
    """What the driver's library raises."""


class NotSupportedError(AnswerError):
    """The card does not have it."""


@dataclass
class Answers:
    """Answers as `pynvml` does, from values; `gpus` are in the order of the bus."""

    gpus: tuple[GpuInfo, ...]
    is_running: bool = True
    num_open: int = 0

    NVMLError = AnswerError
    NVMLError_NotSupported = NotSupportedError
    NVMLError_InvalidArgument = NotSupportedError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_NVLINK_MAX_LINKS = 18
    NVML_FEATURE_ENABLED = 1
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.is_running:
            raise AnswerError("Driver/library version mismatch")
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return self.gpus[0].driver.encode()

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> GpuInfo:  # noqa: N802
        return next(gpu for gpu in self.gpus if gpu.bus_id == bus_id.decode())

    def nvmlDeviceGetName(self, gpu: GpuInfo) -> str:  # noqa: N802
        return gpu.name

    def nvmlDeviceGetPciInfo(self, gpu: GpuInfo) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=gpu.bus_id.encode())

    def nvmlDeviceGetMemoryInfo(self, gpu: GpuInfo) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=gpu.memory_bytes)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: GpuInfo) -> tuple[int, int]:  # noqa: N802
        return gpu.capability

    def nvmlDeviceGetNumGpuCores(self, gpu: GpuInfo) -> int:  # noqa: N802
        return gpu.num_cores

    def nvmlDeviceGetMaxClockInfo(self, gpu: GpuInfo, clock: int) -> int:  # noqa: N802
        return {1: gpu.max_clock_mhz, 2: gpu.max_memory_clock_mhz}[clock]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: GpuInfo) -> int:  # noqa: N802
        return gpu.pcie_generation

    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: GpuInfo) -> int:  # noqa: N802
        return gpu.pcie_width

    def nvmlDeviceGetNvLinkState(self, gpu: GpuInfo, link: int) -> int:  # noqa: N802
        if link >= gpu.num_nvlinks:
            raise NotSupportedError("Not Supported")
        return 1

    def nvmlDeviceGetNvLinkVersion(self, gpu: GpuInfo, _link: int) -> int:  # noqa: N802
        return gpu.nvlink_version

    def nvmlDeviceGetP2PStatus(self, one: GpuInfo, two: GpuInfo, caps: int) -> int:  # noqa: N802
        assert caps == self.NVML_P2P_CAPS_INDEX_NVLINK
        if not one.nvlink_peers:
            raise NotSupportedError("Not Supported")
        return 0 if two.nvlink_peers else 1


def second(gpu: GpuInfo) -> GpuInfo:
    return replace(gpu, index=1, bus_id="00000000:0F:00.0", nvlink_peers=(0,))


def test_gpus_come_in_the_order_of_cuda() -> None:
    answers = Answers((DESKTOP_CARD, A100, second(A100)))
    ids = [A100.bus_id, second(A100).bus_id, DESKTOP_CARD.bus_id]
    found = read_gpus(answers, ids)
    assert found == (A100, second(A100), replace(DESKTOP_CARD, index=2))
    assert answers.num_open == 0


def test_a_gpu_that_cuda_does_not_see_is_left_out() -> None:
    answers = Answers((DESKTOP_CARD, A100))
    assert [gpu.name for gpu in read_gpus(answers, [A100.bus_id])] == [A100.name]
    assert read_gpus(answers, []) == ()


def test_a_driver_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"does not answer .*mismatch.*--cpu-only"):
        read_gpus(Answers((), is_running=False), [])


def test_a_gpu_is_a_memory_and_a_device(tmp_path: Path) -> None:
    cpu = read_cpus(write_machine(tmp_path, DESKTOP), range(4))
    card = replace(DESKTOP_CARD, index=2)
    cluster = machine_cluster(cpu, (A100, second(A100), card), "llvm")
    gpus = cluster.devices[-3:]
    assert [(gpu.name, gpu.kind, gpu.index, gpu.target) for gpu in gpus] == [
        ("gpu0", "cuda", 0, "cuda -arch=sm_80"),
        ("gpu1", "cuda", 1, "cuda -arch=sm_80"),
        ("gpu2", "cuda", 2, "cuda -arch=sm_86"),
    ]
    assert [memory.name for memory in cluster.memories] == ["ram", "gpu0", "gpu1", "gpu2"]
    speed = {link.name: link.bytes_per_second for link in cluster.links}
    assert speed["gpu0->gpu1"] == 12 * 25 * 10**9
    assert speed["ram->gpu0"] == speed["gpu2->gpu1"] == 16 * 1_969_000_000
    save_cluster(cluster, tmp_path / "machine.json")
    assert load_cluster(tmp_path / "machine.json") == cluster


def test_the_speed_of_an_unknown_slot_is_an_error() -> None:
    with pytest.raises(ClusterError, match="PCI Express of generation 9, whose speed is not known"):
        _ = replace(A100, pcie_generation=9).pcie_bytes_per_second
    with pytest.raises(ClusterError, match="version number 99, whose speed is not known"):
        _ = replace(A100, nvlink_version=99).nvlink_bytes_per_second


class Refusing(Answers):
    """As `Answers`, but for functions that it refuses, as in a sandbox."""

    def __init__(self, gpus: tuple[GpuInfo, ...], *refused: str) -> None:
        super().__init__(gpus)
        self._refused = refused

    def __getattribute__(self, name: str) -> object:
        def refuse(*_: object) -> None:
            raise NotSupportedError("Not Supported")

        is_asked = name.startswith(("nvmlDevice", "nvmlSystem"))
        if is_asked and name in object.__getattribute__(self, "_refused"):
            return refuse
        return object.__getattribute__(self, name)


SLOT = {"max_link_speed": "32.0 GT/s PCIe\n", "max_link_width": "16\n"}


def write_slot(root: Path, bus_id: str) -> None:
    folder = root / "sys/bus/pci/devices" / bus_id.lower().removeprefix("0000")
    folder.mkdir(parents=True)
    for name, text in SLOT.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("refused", "changes"),
    [
        ("nvmlDeviceGetName", {"name": "NVIDIA X"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_bytes": 5 << 30}),
        ("nvmlDeviceGetCudaComputeCapability", {"capability": (9, 0)}),
        ("nvmlDeviceGetNumGpuCores", {"num_cores": 132 * 128}),
        ("nvmlDeviceGetMaxClockInfo", {"max_clock_mhz": 1980, "max_memory_clock_mhz": 2619}),
        ("nvmlDeviceGetMaxPcieLinkGeneration", {"pcie_generation": 5}),
        ("nvmlDeviceGetMaxPcieLinkWidth", {"pcie_width": 16}),
        ("nvmlDeviceGetPciInfo", {}),
        ("nvmlSystemGetDriverVersion", {"driver": "CUDA 12040"}),
    ],
)
def test_a_figure_that_nvml_refuses_is_cudas_and_all_others_stay(
    refused: str, changes: dict[str, object], tmp_path: Path
) -> None:
    write_slot(tmp_path, A100.bus_id)
    answers = Refusing((A100,), refused)
    found = read_gpus(answers, [A100.bus_id], FakeDriver(), tmp_path)
    alone = replace(A100, nvlink_peers=())
    assert found == (replace(alone, **changes),)
    assert answers.num_open == 0


def test_a_gpu_of_which_nvml_says_nothing_is_described_by_cuda(tmp_path: Path) -> None:
    write_slot(tmp_path, A100.bus_id)
    answers = Refusing((A100,), "nvmlDeviceGetHandleByPciBusId")
    (found,) = read_gpus(answers, [A100.bus_id], FakeDriver(), tmp_path)
    assert found == GpuInfo(
        name="NVIDIA X",
        index=0,
        bus_id=A100.bus_id,
        memory_bytes=5 << 30,
        capability=(9, 0),
        num_cores=132 * 128,
        max_clock_mhz=1980,
        max_memory_clock_mhz=2619,
        pcie_generation=5,
        pcie_width=16,
        nvlink_peers=(),
        num_nvlinks=0,
        nvlink_version=0,
        driver=A100.driver,
    )


def test_a_slot_that_nobody_describes_is_an_error_where_its_speed_is_needed(tmp_path: Path) -> None:
    answers = Refusing((A100,), "nvmlDeviceGetMaxPcieLinkWidth")
    (found,) = read_gpus(answers, [A100.bus_id], FakeDriver(), tmp_path)
    assert found.pcie_width == 0
    with pytest.raises(ClusterError, match="whose speed is not known"):
        _ = found.pcie_bytes_per_second


def test_cores_of_an_unknown_capability_are_an_error(tmp_path: Path) -> None:
    driver = FakeDriver()
    driver.attributes[75] = 77
    answers = Refusing((A100,), "nvmlDeviceGetNumGpuCores")
    with pytest.raises(ClusterError, match=r"compute capability 77\.0, whose number of cores"):
        read_gpus(answers, [A100.bus_id], driver, tmp_path)


@pytest.mark.parametrize(("failing", "is_there"), [("", True), ("cuInit", False)])
def test_a_driver_without_its_file_is_found_by_starting_cuda(
    failing: str, is_there: bool, tmp_path: Path
) -> None:
    assert has_nvidia_driver(tmp_path, FakeDriver(failing)) == is_there


@pytest.mark.skipif(has_nvidia_driver(), reason="this machine has GPUs")
def test_without_a_driver_there_are_no_gpus() -> None:
    assert read_gpus() == ()
    assert cuda_bus_ids() == ()


def test_a_driver_without_gpus_needs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that may not use the GPUs of its host."""

    def missing() -> None:
        raise MissingPackageError("nvidia-ml-py is not here")

    monkeypatch.setattr(machine_gpu, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(machine_gpu, "_import_nvml", missing)
    monkeypatch.setattr(machine_gpu, "cuda_bus_ids", lambda: ())
    assert read_gpus() == ()
    monkeypatch.setattr(machine_gpu, "cuda_bus_ids", lambda: (A100.bus_id,))
    with pytest.raises(MissingPackageError):
        read_gpus()
