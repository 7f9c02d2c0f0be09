"""What the NVIDIA driver says of its GPUs -> values. Asked through NVML; nothing is measured.

NVML numbers GPUs by their place on the bus; CUDA, and so TVM's `cuda(1)`, by speed or as the
variables CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES say. The order here is CUDA's: the driver is
asked for the bus address of each of its devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heteroplace.errors import ClusterError, MissingPackageError

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
_BUS_ID_CHARACTERS = 32
_NAME_CHARACTERS = 128
_CUDA_ATTRIBUTES = {
    "compute capability": 75,
    "minor": 76,
    "multiprocessors": 16,
    "clock kHz": 13,
    "memory clock kHz": 36,
}
"""CUdevice_attribute (CUDA Driver API)."""
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE"""


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
    """The best that card and slot can do together; at rest it may run slower."""
    pcie_width: int
    """Lanes."""
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
            The generation is unknown.
        """
        speeds, generation = _PCIE_LANE_BYTES_PER_SECOND, self.pcie_generation
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


def has_nvidia_driver(root: Path = Path("/")) -> bool:
    """Tell whether the driver of NVIDIA's GPUs is loaded."""
    return (root / "proc/driver/nvidia/version").is_file()


def read_gpus(nvml: Any = None, bus_ids: Sequence[str] | None = None) -> tuple[GpuInfo, ...]:
    """Return the GPUs that CUDA sees, in CUDA's order; none without a driver, or if it sees none.

    Parameters
    ----------
    nvml : module, optional
        What answers as `pynvml` does; by default that module.
    bus_ids : sequence of str, optional
        Bus addresses in CUDA's order; by default the driver is asked.

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
        handles = [nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()) for bus_id in ids]
        driver = _as_text(nvml.nvmlSystemGetDriverVersion())
        return tuple(_read_gpu(nvml, handles, index, driver) for index in range(len(handles)))
    except nvml.NVMLError as err:
        raise ClusterError(f"the NVIDIA driver does not describe its GPUs: {err}") from err
    finally:
        nvml.nvmlShutdown()


def cuda_bus_ids() -> tuple[str, ...]:
    """Return the bus addresses of CUDA's devices in CUDA's order; none without a driver.

    Raises
    ------
    ClusterError
        The driver refuses to start.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE:
        return ()
    if status != 0:
        raise ClusterError(f"the CUDA driver does not start (error {status}); see nvidia-smi")
    found = []
    for index in range(count.value):
        device = ctypes.c_int()
        text = ctypes.create_string_buffer(_BUS_ID_CHARACTERS)
        status = driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetPCIBusId(
            text, _BUS_ID_CHARACTERS, device
        )
        if status != 0:
            raise ClusterError(f"the CUDA driver does not describe GPU {index} (error {status})")
        found.append(text.value.decode())
    return tuple(found)


def cuda_description(index: int, driver: Any = None) -> str:
    """Return what CUDA itself says of its device `index`; for where NVML cannot be asked.

    Parameters
    ----------
    driver
        What answers as libcuda does; by default that library.

    Raises
    ------
    ClusterError
        CUDA does not describe the device.
    """
    driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
    device, version, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(_NAME_CHARACTERS), ctypes.c_size_t()
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetName(name, _NAME_CHARACTERS, device)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        or driver.cuDriverGetVersion(ctypes.byref(version))
    )
    found = {}
    for what, attribute in _CUDA_ATTRIBUTES.items():
        status = status or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found[what] = value.value
    if status != 0:
        raise ClusterError(f"the CUDA driver does not describe GPU {index} (error {status})")
    parts = [
        name.value.decode(errors="replace"),
        *(f"{what} {number}" for what, number in found.items()),
        f"{memory.value >> 20} MiB",
        f"CUDA driver {version.value}",
    ]
    return "; ".join(parts)


def _import_nvml() -> Any:
    try:
        import pynvml
    except ImportError as err:
        raise MissingPackageError(
            "this machine has an NVIDIA driver, and asking it for its GPUs needs nvidia-ml-py: "
            "pip install 'heteroplace[gpu]' (or nvidia-ml-py), or leave the GPUs out (--cpu-only)"
        ) from err
    return pynvml


def _read_gpu(nvml: Any, handles: Sequence[Any], index: int, driver: str) -> GpuInfo:
    handle = handles[index]
    num_links, version = _nvlinks(nvml, handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuInfo(
        name=_as_text(nvml.nvmlDeviceGetName(handle)),
        index=index,
        bus_id=_as_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=(int(major), int(minor)),
        num_cores=int(nvml.nvmlDeviceGetNumGpuCores(handle)),
        max_clock_mhz=int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        max_memory_clock_mhz=int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        pcie_generation=int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        pcie_width=int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        nvlink_peers=_nvlink_peers(nvml, handles, index),
        num_nvlinks=num_links,
        nvlink_version=version,
        driver=driver,
    )


def _nvlinks(nvml: Any, handle: Any) -> tuple[int, int]:
    """Number of active NVLinks and their version; (0, 0) for a GPU that has none."""
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


def _nvlink_peers(nvml: Any, handles: Sequence[Any], index: int) -> tuple[int, ...]:
    peers = []
    for other, handle in enumerate(handles):
        if other == index:
            continue
        try:
            status = nvml.nvmlDeviceGetP2PStatus(
                handles[index], handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK
            )
        except nvml.NVMLError_NotSupported:
            continue
        if status == nvml.NVML_P2P_STATUS_OK:
            peers.append(other)
    return tuple(peers)


def _as_text(value: str | bytes) -> str:
    """NVML's texts are bytes in older versions of its package."""
    return value.decode() if isinstance(value, bytes) else value
