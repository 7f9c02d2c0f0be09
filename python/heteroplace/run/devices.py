"""From the devices of a plan to what of them this machine lacks."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tvm

from heteroplace.codegen.targets import DL_DEVICE_TYPES
from heteroplace.errors import MissingDeviceError
from heteroplace.model.cluster import Cluster
from heteroplace.model.solution import Solution


def check_devices_exist(solution: Solution, others: Sequence[str] = ()) -> None:
    """Raise MissingDeviceError unless every device in use is here; `others` is missing too."""
    missing = missing_devices(solution.cluster, solution.devices_used)
    told = "the plan needs devices that this machine does not have: "
    faults = [*([told + "; ".join(missing)] if missing else []), *others]
    if faults:
        raise MissingDeviceError(
            "; ".join(faults) + ". Place the model again for a cluster that describes this machine"
        )


def missing_devices(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Say for each of the named devices what of it this machine lacks; empty: nothing."""
    allowed = os.sched_getaffinity(0)
    missing = []
    for device in cluster.devices:
        if device.name not in names:
            continue
        if device.host:
            missing.append(f"{device.name} (on machine {device.host!r}; plans run on one machine)")
            continue
        absent = sorted(set(device.cores) - allowed)
        if device.kind == "cpu" and absent:
            cores = ", ".join(map(str, absent))
            missing.append(f"{device.name} (core {cores}; allowed are {sorted(allowed)})")
        elif device.kind == "cuda" and not tvm.device("cuda", device.index).exist:
            missing.append(f"{device.name} (cuda:{device.index}; no such GPU, or no driver)")
        elif device.kind not in DL_DEVICE_TYPES:
            missing.append(f"{device.name} (kind {device.kind!r}; only CPUs and GPUs can run)")
    return missing
