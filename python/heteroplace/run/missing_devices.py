"""From the devices of a plan to what of them this machine lacks, alone or as one of its hosts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from heteroplace.errors import MissingDeviceError
from heteroplace.files.placement import UsedDevice
from heteroplace.native.compiled_file import DL_DEVICE_TYPES, cuda_capability

if TYPE_CHECKING:
    from heteroplace.model.cluster import Cluster, Device


def check_devices_exist(
    devices: Iterable[UsedDevice], others: Sequence[str] = (), host: str | None = None
) -> None:
    """Raise MissingDeviceError unless all devices are here; `others` is missing too.

    `host`: see `missing_devices`.
    """
    missing = _missing(devices, host)
    opening = "the plan needs devices that this machine does not have: "
    faults = [*([opening + "; ".join(missing)] if missing else []), *others]
    if faults:
        raise MissingDeviceError(
            "; ".join(faults) + ". Place the model again for a cluster that describes this machine"
        )


def missing_devices(cluster: Cluster, names: Sequence[str], host: str | None = None) -> list[str]:
    """Say for each of the named devices what of it this machine lacks; empty: nothing.

    Parameters
    ----------
    host
        The host that this process runs, as one rank of several: its devices alone are looked for,
        the others are the business of other ranks. None: the process runs all devices alone, so
        one on a host with a name is missing.
    """
    return _missing([device for device in cluster.devices if device.name in names], host)


def _missing(devices: Iterable[UsedDevice | Device], host: str | None) -> list[str]:
    allowed = os.sched_getaffinity(0)
    missing = []
    for device in devices:
        if host is not None and device.host != host:
            continue
        if device.host and host is None:
            missing.append(
                f"{device.name} (on host {device.host!r}; a process alone runs its own machine)"
            )
            continue
        absent = sorted(set(device.cores) - allowed)
        if device.kind == "cpu" and absent:
            cores = ", ".join(map(str, absent))
            missing.append(f"{device.name} (core {cores}; allowed are {sorted(allowed)})")
        elif device.kind == "cuda" and cuda_capability(device.index) is None:
            missing.append(f"{device.name} (cuda:{device.index}; no such GPU, or no driver)")
        elif device.kind not in DL_DEVICE_TYPES:
            missing.append(f"{device.name} (kind {device.kind!r}; only CPUs and GPUs can run)")
    return missing
