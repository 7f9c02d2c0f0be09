"""What a processor is -> a text that is equal only where kernels take equally long.

Measured times are filed under it. It holds what does not change from day to day: names, the
largest clock, caches, microcode, drivers; not the clock or the temperature of the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heteroplace.control_groups import cpu_model, first_fields, read_text
from heteroplace.errors import ClusterError, MissingPackageError
from heteroplace.machine.core_kinds import kind_of_core
from heteroplace.machine.cuda_driver import cuda_description
from heteroplace.machine.gpu import GpuInfo, read_gpus
from heteroplace.model.cluster import Device


def device_fingerprint(device: Device) -> str:
    """Return the fingerprint of a device of this machine.

    That of a GPU is what NVML says, or without nvidia-ml-py what CUDA says: another text, so that
    what was measured with one is measured again with the other.

    Raises
    ------
    ClusterError
        The device is on another host, of a kind that is neither "cpu" nor "cuda", or missing.
    """
    if device.host:
        raise ClusterError(
            f"device {device.name!r} is on host {device.host!r}; its fingerprint is taken there"
        )
    if device.kind == "cpu":
        return cpu_fingerprint(device.cores or (0,))
    if device.kind == "cuda":
        try:
            return gpu_fingerprint(device.index)
        except MissingPackageError:  # costs are kept by default, and need no more than CUDA
            return cuda_description(device.index)
    raise ClusterError(
        f"device {device.name!r} is of kind {device.kind!r}; only cpu and cuda have fingerprints"
    )


def cpu_fingerprint(cores: Sequence[int] = (0,), root: Path = Path("/")) -> str:
    """Return the fingerprint of some cores of a processor.

    Parameters
    ----------
    cores : sequence of int
        Cores of several kinds (fast and thrifty ones) give the fingerprints of all kinds.
    root : path
        Folder that holds `proc` and `sys`.

    Raises
    ------
    ClusterError
        The system says nothing of its processor.
    """
    text = read_text(root / "proc/cpuinfo")
    fields = first_fields(text)
    parts = [_identity(cpu_model(text), fields)]
    if fields.get("microcode"):
        parts.append(f"microcode {fields['microcode']}")
    kinds = sorted({kind_of_core(core, fields, root) for core in cores} - {""})
    parts += [" and ".join(kinds)] if kinds else []
    fingerprint = "; ".join(filter(None, parts))
    if not fingerprint:
        raise ClusterError(
            f"{root / 'proc/cpuinfo'} does not say what the processor is; its kernels' times "
            f"cannot be told from those of other machines"
        )
    return fingerprint


def gpu_fingerprint(index: int) -> str:
    """Return the fingerprint of the GPU that CUDA numbers `index`.

    Raises
    ------
    ClusterError
        There is no such GPU.
    MissingPackageError
        The package nvidia-ml-py is not installed.
    """
    gpus = read_gpus()
    if not 0 <= index < len(gpus):
        raise ClusterError(f"GPU cuda:{index} does not exist; this machine has {len(gpus)}")
    return gpu_fingerprint_of(gpus[index])


def gpu_fingerprint_of(gpu: GpuInfo) -> str:
    """Return the fingerprint of a GPU whose values are known."""
    return "; ".join(
        (
            gpu.name,
            f"compute capability {gpu.capability[0]}.{gpu.capability[1]}",
            f"{gpu.num_cores} cores",
            f"{gpu.max_clock_mhz} MHz, memory {gpu.max_memory_clock_mhz} MHz",
            f"{gpu.memory_bytes >> 20} MiB",
            f"driver {gpu.driver}",
        )
    )


def _identity(name: str, fields: dict[str, str]) -> str:
    """The processor's name and numbers: those of x86, else those of ARM."""
    x86 = [f"{key} {fields[key]}" for key in ("model", "stepping") if key in fields]
    if "cpu family" in fields:
        return f"{name} (family {fields['cpu family']} {' '.join(x86)})"
    keys = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")
    arm = " ".join(f"{key[4:]} {fields[key]}" for key in keys if key in fields)
    return f"{name} ({arm})".strip() if arm else name
