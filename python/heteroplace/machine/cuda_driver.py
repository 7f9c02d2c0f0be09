"""What the CUDA driver (libcuda) says of its devices -> values; nothing is measured."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from heteroplace.errors import ClusterError

_LIBRARY = "libcuda.so.1"
_BUS_ID_CHARACTERS = 32
_NAME_CHARACTERS = 128
_MAJOR, _MINOR, _MULTIPROCESSORS, _CLOCK_KHZ, _MEMORY_CLOCK_KHZ = 75, 76, 16, 13, 36
_DESCRIBED = {
    "compute capability": _MAJOR,
    "minor": _MINOR,
    "multiprocessors": _MULTIPROCESSORS,
    "clock kHz": _CLOCK_KHZ,
    "memory clock kHz": _MEMORY_CLOCK_KHZ,
}
"""CUdevice_attribute (CUDA Driver API)."""
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE"""
_CORES_PER_MULTIPROCESSOR = {
    **dict.fromkeys(((3, 0), (3, 5), (3, 7)), 192),
    **dict.fromkeys(((5, 0), (5, 2), (5, 3), (6, 1), (6, 2)), 128),
    **dict.fromkeys(((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)), 128),
}
"""By compute capability (CUDA C++ Programming Guide, "Arithmetic Instructions": results of float32
additions per clock cycle)."""


def open_driver() -> Any:
    """Return libcuda; None: it is not installed."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None


def cuda_starts(driver: Any = None) -> bool:
    """Tell whether CUDA starts and sees a GPU; asked where the driver's files do not say.

    Parameters
    ----------
    driver
        What answers as libcuda does; by default that library.
    """
    driver = open_driver() if driver is None else driver
    return driver is not None and driver.cuInit(0) == 0


def cuda_bus_ids() -> tuple[str, ...]:
    """Return the bus addresses of CUDA's devices in CUDA's order; none without a driver.

    Raises
    ------
    ClusterError
        The driver refuses to start.
    """
    driver = open_driver()
    if driver is None:
        return ()
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status == _NO_DEVICE:
        return ()
    if status != 0:
        raise ClusterError(f"the CUDA driver does not start (error {status}); see nvidia-smi")
    bus_ids = []
    for index in range(count.value):
        device = ctypes.c_int()
        text = ctypes.create_string_buffer(_BUS_ID_CHARACTERS)
        status = driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetPCIBusId(
            text, _BUS_ID_CHARACTERS, device
        )
        if status != 0:
            raise ClusterError(f"the CUDA driver does not describe GPU {index} (error {status})")
        bus_ids.append(text.value.decode())
    return tuple(bus_ids)


@dataclass(frozen=True)
class CudaDevice:
    """One device as libcuda describes it.

    Each property and method raises ClusterError if the driver does not answer.
    """

    index: int
    """Ordinal in CUDA."""
    driver: Any
    """What answers as libcuda does."""

    @classmethod
    def open(cls, index: int, driver: Any = None) -> CudaDevice:
        """Start CUDA and return a device; `driver` is libcuda by default.

        Raises
        ------
        ClusterError
            There is no libcuda, or it does not start.
        """
        driver = open_driver() if driver is None else driver
        device = cls(index, driver)
        device._check(_NO_DEVICE if driver is None else driver.cuInit(0))
        return device

    @property
    def name(self) -> str:
        """As of NVML."""
        text = ctypes.create_string_buffer(_NAME_CHARACTERS)
        self._check(self.driver.cuDeviceGetName(text, _NAME_CHARACTERS, self._handle()))
        return text.value.decode(errors="replace")

    @property
    def memory_bytes(self) -> int:
        """Of its memory, less what the driver keeps."""
        memory = ctypes.c_size_t()
        self._check(self.driver.cuDeviceTotalMem_v2(ctypes.byref(memory), self._handle()))
        return memory.value

    @property
    def driver_version(self) -> int:
        """The newest CUDA that the driver supports, as 12080 for 12.8."""
        version = ctypes.c_int()
        self._check(self.driver.cuDriverGetVersion(ctypes.byref(version)))
        return version.value

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability."""
        return self._attribute(_MAJOR), self._attribute(_MINOR)

    @property
    def num_cores(self) -> int:
        """CUDA cores; ClusterError too if those of a multiprocessor are not known here."""
        capability = self.capability
        if capability not in _CORES_PER_MULTIPROCESSOR:
            raise ClusterError(
                f"GPU cuda:{self.index} has compute capability {capability[0]}.{capability[1]}, "
                f"whose number of cores is not known here; describe the GPU in a cluster file "
                f"(heteroplace probe --cluster FILE), or leave the GPUs out (--cpu-only)"
            )
        return self._attribute(_MULTIPROCESSORS) * _CORES_PER_MULTIPROCESSOR[capability]

    @property
    def max_clock_mhz(self) -> int:
        """Of the multiprocessors."""
        return self._attribute(_CLOCK_KHZ) // 1000

    @property
    def max_memory_clock_mhz(self) -> int:
        """Of the memory."""
        return self._attribute(_MEMORY_CLOCK_KHZ) // 1000

    def described(self) -> dict[str, int]:
        """Return the attributes of `cuda_description` by name."""
        return {what: self._attribute(number) for what, number in _DESCRIBED.items()}

    def _handle(self) -> ctypes.c_int:
        device = ctypes.c_int()
        self._check(self.driver.cuDeviceGet(ctypes.byref(device), self.index))
        return device

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        device = self._handle()
        self._check(self.driver.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        return value.value

    def _check(self, status: int) -> None:
        if status != 0:
            raise ClusterError(
                f"the CUDA driver does not describe GPU {self.index} (error {status})"
            )


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
    device = CudaDevice.open(index, driver)
    parts = [
        device.name,
        *(f"{what} {number}" for what, number in device.described().items()),
        f"{device.memory_bytes >> 20} MiB",
        f"CUDA driver {device.driver_version}",
    ]
    return "; ".join(parts)
