"""What the NVIDIA driver says of its GPUs -> values. Nothing is measured.

NVML is asked first. It refuses single figures in containers, virtual machines and parts of a GPU
(MIG): each of those is CUDA's own then, and the width of the slot that of the system's PCI files.
NVLinks that NVML does not describe count as none.

NVML numbers GPUs by their place on the bus; CUDA, and so TVM's `cuda(1)`, by speed or as the
variables CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES say. The order here is CUDA's: the driver is
asked for the bus address of each of its devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from heteroplace.errors import ClusterError, MissingPackageError
from heteroplace.machine.cuda_driver import CudaDevice, cuda_bus_ids, cuda_starts

_Figure = TypeVar("_Figure")

_PCIE_LANE_BYTES_PER_SECOND = {
    1: 250_000_000,
    2: 500_000_000,
    3: 984_600_000,
    4: 1_969_000_000,
    5: 3_938_000_000,
    6: 7_563_000_000,
}
"""One lane, one direction, after the line code (PCI Express Base Specification)."""
_NVLINK_BYTES_PER_SECOND = {
    1: 20_000_000_000,
    **dict.fromkeys(range(2, 7), 25_000_000_000),
    7: 50_000_000_000,
}
"""One NVLink, one direction, by NVML's number of its version: 1.0 is 1, those from 2.0 to 4.0 are 2
to 6, 5.0 is 7 (NVIDIA's data sheets of P100, V100, A100, H100 and B200)."""
_PCIE_GENERATION_OF_SPEED = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""By GT/s, as the system writes it."""


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as the driver describes it."""

    name: str
    index: int
    """Ordinal in CUDA."""
    bus_id: str
    """Address on the PCI bus, e.g. "00000000:17:00.0"."""
    memory_bytes: int
    capability: tuple[int, int]
    """CUDA compute capability, e.g. (9, 0)."""
    num_cores: int
    """CUDA cores."""
    max_clock_mhz: int
    """Largest clock of the multiprocessors."""
    max_memory_clock_mhz: int
    pcie_generation: int
    """The best that card and slot can do together; at rest it may run slower. 0: not known."""
    pcie_width: int
    """Lanes. 0: not known."""
    nvlink_peers: tuple[int, ...]
    """Ordinals of the GPUs that it reaches by NVLink."""
    num_nvlinks: int
    """Active NVLinks, whoever is at the other end."""
    nvlink_version: int
    """NVML's number of it; 0 without NVLink."""
    driver: str

    @property
    def target(self) -> str:
        """TVM target of its kernels."""
        return f"cuda -arch=sm_{self.capability[0]}{self.capability[1]}"

    @property
    def pcie_bytes_per_second(self) -> int:
        """What its slot can carry in one direction, without the packets' headers.

        Raises
        ------
        ClusterError
            The generation or the number of lanes is unknown.
        """
        speeds, generation = _PCIE_LANE_BYTES_PER_SECOND, self.pcie_generation
        if not self.pcie_width:
            generation = 0
        return self._known(speeds, generation, "PCI Express of generation") * self.pcie_width

    @property
    def nvlink_bytes_per_second(self) -> int:
        """What all its NVLinks together carry in one direction.

        Raises
        ------
        ClusterError
            Their version is unknown.
        """
        speeds, version = _NVLINK_BYTES_PER_SECOND, self.nvlink_version
        return self._known(speeds, version, "NVLinks of version number") * self.num_nvlinks

    def _known(self, speeds: Mapping[int, int], key: int, what: str) -> int:
        if key not in speeds:
            raise ClusterError(
                f"GPU cuda:{self.index} ({self.name}) has {what} {key}, whose speed is not known "
                f"here; write a cluster file with this GPU and have its links measured "
                f"(heteroplace probe --cluster FILE), or leave the GPUs out (--cpu-only)"
            )
        return speeds[key]


def has_nvidia_driver(root: Path = Path("/"), driver: Any = None) -> bool:
    """Tell whether the driver of NVIDIA's GPUs is loaded, by its file, else by starting CUDA.

    Sandboxes and WSL have the library and not the file.

    Parameters
    ----------
    root
        Of the system's files.
    driver
        What answers as libcuda does; by default that library.
    """
    return (root / "proc/driver/nvidia/version").is_file() or cuda_starts(driver)


def read_gpus(
    nvml: Any = None,
    bus_ids: Sequence[str] | None = None,
    cuda: Any = None,
    root: Path = Path("/"),
) -> tuple[GpuInfo, ...]:
    """Return the GPUs that CUDA sees, in CUDA's order; none without a driver, or if it sees none.

    Parameters
    ----------
    nvml : module, optional
        What answers as `pynvml` does; by default that module.
    bus_ids : sequence of str, optional
        Bus addresses in CUDA's order; by default the driver is asked.
    cuda
        What answers as libcuda does, for figures that NVML refuses; by default that library.
    root
        Of the system's files.

    Raises
    ------
    MissingPackageError
        There are GPUs, but the package nvidia-ml-py is not installed.
    ClusterError
        The driver does not answer.
    """
    if nvml is None and not has_nvidia_driver():
        return ()
    ids = cuda_bus_ids() if bus_ids is None else tuple(bus_ids)
    if nvml is None:
        if not ids:  # a container shows the driver's files also where it may use no GPU
            return ()
        nvml = _import_nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as err:
        raise ClusterError(
            f"the NVIDIA driver does not answer ({err}); see nvidia-smi, or leave the GPUs out "
            f"(--cpu-only)"
        ) from err
    try:
        reader = _Reader(nvml, ids, cuda, root)
        return tuple(reader.gpu(index) for index in range(len(ids)))
    finally:
        nvml.nvmlShutdown()


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError as err:
        raise MissingPackageError(
            "this machine has an NVIDIA driver, and asking it for its GPUs needs nvidia-ml-py: "
            "pip install 'heteroplace[gpu]' (or nvidia-ml-py), or leave the GPUs out (--cpu-only)"
        ) from err
    return pynvml


@dataclass
class _Reader:
    """Reads GPUs through an NVML that is open; what it refuses is asked elsewhere."""

    nvml: Any
    bus_ids: Sequence[str]
    cuda: Any
    root: Path

    def gpu(self, index: int) -> GpuInfo:
        """Describe one GPU."""
        nvml, bus_id = self.nvml, self.bus_ids[index]
        num_links, version = self._or(lambda: self._nvlinks(index), lambda: (0, 0))
        generation, width = _slot(self.root, bus_id)
        major, minor = self._of("nvmlDeviceGetCudaComputeCapability", index, "capability")
        return GpuInfo(
            name=_as_text(self._of("nvmlDeviceGetName", index, "name")),
            index=index,
            bus_id=self._or(
                lambda: _as_text(nvml.nvmlDeviceGetPciInfo(self._handle(index)).busId),
                lambda: bus_id,
            ),
            memory_bytes=self._or(
                lambda: int(nvml.nvmlDeviceGetMemoryInfo(self._handle(index)).total),
                lambda: self._of_cuda(index).memory_bytes,
            ),
            capability=(int(major), int(minor)),
            num_cores=int(self._of("nvmlDeviceGetNumGpuCores", index, "num_cores")),
            max_clock_mhz=self._clock(nvml.NVML_CLOCK_SM, index, "max_clock_mhz"),
            max_memory_clock_mhz=self._clock(nvml.NVML_CLOCK_MEM, index, "max_memory_clock_mhz"),
            pcie_generation=self._or(
                lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(self._handle(index))),
                lambda: generation,
            ),
            pcie_width=self._or(
                lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(self._handle(index))),
                lambda: width,
            ),
            nvlink_peers=self._nvlink_peers(index),
            num_nvlinks=num_links,
            nvlink_version=version,
            driver=self._or(
                lambda: _as_text(nvml.nvmlSystemGetDriverVersion()),
                lambda: f"CUDA {self._of_cuda(index).driver_version}",
            ),
        )

    def _or(self, of_nvml: Callable[[], _Figure], other: Callable[[], _Figure]) -> _Figure:
        """A figure of NVML, or another's if it refuses."""
        try:
            return of_nvml()
        except self.nvml.NVMLError:
            return other()

    def _of(self, function: str, index: int, attribute: str) -> Any:
        return self._or(
            lambda: getattr(self.nvml, function)(self._handle(index)),
            lambda: getattr(self._of_cuda(index), attribute),
        )

    def _clock(self, clock: int, index: int, attribute: str) -> int:
        return self._or(
            lambda: int(self.nvml.nvmlDeviceGetMaxClockInfo(self._handle(index), clock)),
            lambda: int(getattr(self._of_cuda(index), attribute)),
        )

    def _of_cuda(self, index: int) -> CudaDevice:
        return CudaDevice.open(index, self.cuda)

    def _handle(self, index: int) -> Any:
        return self.nvml.nvmlDeviceGetHandleByPciBusId(self.bus_ids[index].encode())

    def _nvlinks(self, index: int) -> tuple[int, int]:
        """Number of active NVLinks and their version; (0, 0) for a GPU that has none."""
        nvml, handle = self.nvml, self._handle(index)
        active = 0
        version = 0
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(handle, link) != nvml.NVML_FEATURE_ENABLED:
                    continue
                version = int(nvml.nvmlDeviceGetNvLinkVersion(handle, link))
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                break  # the GPU has no more of them
            active += 1
        return active, version

    def _nvlink_peers(self, index: int) -> tuple[int, ...]:
        nvml = self.nvml

        def is_peer(other: int) -> bool:
            handles = self._handle(index), self._handle(other)
            status = nvml.nvmlDeviceGetP2PStatus(*handles, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            return bool(status == nvml.NVML_P2P_STATUS_OK)

        others = [other for other in range(len(self.bus_ids)) if other != index]
        return tuple(other for other in others if self._or(partial(is_peer, other), lambda: False))


def _slot(root: Path, bus_id: str) -> tuple[int, int]:
    """Generation and lanes of PCI Express by the system's files; 0: they do not say."""
    domain, _, rest = bus_id.lower().partition(":")
    folder = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}"
    texts = []
    for name in ("max_link_speed", "max_link_width"):
        path = folder / name
        texts.append(path.read_text().split() if path.is_file() else [])
    speed, width = texts
    generation = _PCIE_GENERATION_OF_SPEED.get(speed[0], 0) if speed else 0
    return generation, int(width[0]) if width and width[0].isdecimal() else 0


def _as_text(value: str | bytes) -> str:
    """NVML's texts are bytes in older versions of its package."""
    return value.decode() if isinstance(value, bytes) else value
