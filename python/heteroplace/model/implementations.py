"""Devices that stand for other kernels of another device: its twins, and what a plan gains by them.

A twin has the cores (or the GPU), the memory and the name of its device, and its kernels are of
another maker (`heteroplace.measure.kernel_variants`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import CostTable
from heteroplace.model.plan import Plan, Run


class LibraryMaker(NamedTuple):
    """A library of NVIDIA's, and what it multiplies in."""

    option: str
    """That asks for it: "cublas" or "cudnn"."""
    precision: str
    """"float32", "tf32" or "half"."""


LIBRARY_MAKERS = {
    "cublas": LibraryMaker("cublas", "float32"),
    "cublas_tf32": LibraryMaker("cublas", "tf32"),
    "cublas_half": LibraryMaker("cublas", "half"),
    "cudnn": LibraryMaker("cudnn", "float32"),
    "cudnn_tf32": LibraryMaker("cudnn", "tf32"),
    "cudnn_half": LibraryMaker("cudnn", "half"),
}
"""Libraries of NVIDIA's on GPUs: the name says what they multiply in where it is not float32."""

BFLOAT16 = "bf16"
"""The maker of our own kernels that multiply in bfloat16."""

MAKERS = ("tvm", "tuned", BFLOAT16, *LIBRARY_MAKERS)
"""Who makes kernels beside us: TVM as it is, its tuners, we in bfloat16, cuBLASLt, cuDNN."""


def twin_name(device: str, maker: str) -> str:
    """Return the name of the device with a maker's kernels on the cores of another.

    >>> twin_name("cpu.0", "tuned")
    'cpu.0:tuned'
    """
    return f"{device}:{maker}"


def maker_of(device: str) -> str | None:
    """Return the maker that a device's name says; None: it is that of no twin.

    >>> maker_of("cpu.0:tuned"), maker_of("cpu.0")
    ('tuned', None)
    """
    _, colon, maker = device.rpartition(":")
    return maker if colon and maker in MAKERS else None


def makers_of(devices: Iterable[Device]) -> tuple[str, ...]:
    """Return the makers of the twins among some devices, in the order of MAKERS."""
    makers = {maker_of(device.name) for device in devices}
    return tuple(maker for maker in MAKERS if maker in makers)


def without_twins(cluster: Cluster) -> Cluster:
    """Return a cluster without its twins; itself if it has none."""
    devices = tuple(
        device for index, device in enumerate(cluster.devices) if base_of(cluster, index) is None
    )
    return cluster if len(devices) == len(cluster.devices) else replace(cluster, devices=devices)


def base_of(cluster: Cluster, index: int) -> int | None:
    """Return the device whose twin a device is; None: it is no twin."""
    twin = cluster.devices[index]
    maker = maker_of(twin.name)
    if maker is None:
        return None
    for other, device in enumerate(cluster.devices):
        if twin_name(device.name, maker) == twin.name and device.units == twin.units:
            return other
    return None


def base_names(cluster: Cluster) -> list[str]:
    """Return the names of the devices, of twins those of the devices whose twins they are."""
    bases = (base_of(cluster, index) for index in range(len(cluster.devices)))
    devices = cluster.devices
    return [devices[index if base is None else base].name for index, base in enumerate(bases)]


def implementation_gains(
    cluster: Cluster, costs: CostTable, plan: Plan
) -> dict[str, tuple[int, int]]:
    """Return for each twin that a plan uses the number of its tasks, and the ns that they gain.

    A gain is against the same cores with the kernels of their own device, by the cost table; a
    task without a time there gains 0.
    """
    gains: dict[str, tuple[int, int]] = {}
    for step in plan.steps:
        base = base_of(cluster, step.device) if isinstance(step, Run) else None
        if base is None or not isinstance(step, Run):
            continue
        mine, theirs = (costs.rows[step.task][device].ns for device in (step.device, base))
        num_tasks, gain_ns = gains.get(cluster.devices[step.device].name, (0, 0))
        gain_ns += theirs - mine if mine is not None and theirs is not None else 0
        gains[cluster.devices[step.device].name] = (num_tasks + 1, gain_ns)
    return gains
