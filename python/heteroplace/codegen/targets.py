"""Device of a cluster -> TVM target and DLPack device numbers."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from heteroplace.errors import LoweringError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.graph import TaskGraph

DL_DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""Kinds of devices that can be compiled for, with their DLPack device types."""


def device_target(device: Device, host: tvm.target.Target | None = None) -> tvm.target.Target:
    """Return the TVM target of a device.

    Raises
    ------
    LoweringError
        TVM does not accept the target text, the device's kind cannot be compiled for, or a CPU
        device does not say which cores it has.
    """
    if device.kind not in DL_DEVICE_TYPES:
        kinds = ", ".join(sorted(DL_DEVICE_TYPES))
        raise LoweringError(
            f"device {device.name!r} is of kind {device.kind!r}; it can be planned for, but code "
            f"is generated only for: {kinds}"
        )
    if device.kind == "cpu" and not device.cores:
        raise LoweringError(
            f"device {device.name!r} is a CPU, but names no cores to run on; list them in 'cores'"
        )
    try:
        return tvm.target.Target(device.target, host)
    except (ValueError, RuntimeError) as err:
        reason = str(err).strip().splitlines()[-1]
        raise LoweringError(
            f"device {device.name!r}: TVM does not accept its target {device.target!r}: {reason}"
        ) from err


def cluster_targets(cluster: Cluster) -> tuple[tuple[tvm.target.Target, ...], tuple[int, ...]]:
    """Return the distinct targets of a cluster, and for each device the position of its own.

    The target of the first CPU device is the host of all others.
    """
    texts = list(dict.fromkeys(device.target for device in cluster.devices))
    host_device = next((device for device in cluster.devices if device.kind == "cpu"), None)
    host = None if host_device is None else device_target(host_device)
    by_text = {device.target: device_target(device, host) for device in reversed(cluster.devices)}
    positions = tuple(texts.index(device.target) for device in cluster.devices)
    return tuple(by_text[text] for text in texts), positions


def placed_targets(
    graph: TaskGraph, cluster: Cluster, placement: Sequence[int]
) -> tuple[tuple[tvm.target.Target, ...], dict[str, int]]:
    """Return the cluster's targets, and by task name the position of that of its device.

    Parameters
    ----------
    placement
        Device id of each task.
    """
    targets, target_of_device = cluster_targets(cluster)
    pairs = zip(graph.tasks, placement, strict=True)
    return targets, {task.name: target_of_device[device] for task, device in pairs}
