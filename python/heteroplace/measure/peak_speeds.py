"""CPU devices of this machine whose peak speeds nobody gives -> the speeds that they reach."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from heteroplace.costs.roofline import Speeds, device_speeds
from heteroplace.measure.devices_under_test import DeviceClass, device_class
from heteroplace.measure.machine_peaks import measure_peaks
from heteroplace.model.cluster import Cluster
from heteroplace.run.missing_devices import missing_devices

if TYPE_CHECKING:
    from heteroplace.stage_log import Progress


def measure_speeds(
    cluster: Cluster, names: Collection[str], progress: Progress | None = None
) -> dict[str, Speeds]:
    """Measure the peak speeds of those devices that have neither speeds nor a known model.

    Only CPU cores of this machine can be measured, in about a second for each kind of device.

    Parameters
    ----------
    names
        The devices that matter.

    Returns
    -------
    speeds
        By the name of a device; without those that are known or cannot be measured here.
    """
    speeds: dict[str, Speeds] = {}
    measured: dict[DeviceClass, Speeds] = {}
    for index, device in enumerate(cluster.devices):
        is_open = device.name in names and device_speeds(device) is None
        can_run = device.kind == "cpu" and device.cores and device.target
        if not (is_open and can_run) or missing_devices(cluster, [device.name]):
            continue
        alike = device_class(cluster, index)
        if alike not in measured:
            if progress is not None:
                progress(f"Measuring the peak speeds of {device.name}")
            peaks = measure_peaks(device.target, device.cores)
            rates = round(peaks.flops_per_second), round(peaks.bytes_per_second)
            measured[alike] = Speeds(*rates, device.launch_ns)
        speeds[device.name] = measured[alike]
    return speeds
