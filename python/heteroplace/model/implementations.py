"""Devices that stand for other kernels of another device: its twins, and what a plan gains by them.

A twin has the cores, the memory and the name of its device, and its kernels are of another maker
(`heteroplace.measure.implementations`).
"""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.plan import Plan, Run

TWIN = "{}:tvm"
"""Name of a device with TVM's own kernels, from that of the device whose cores it has."""


def base_of(cluster: Cluster, index: int) -> int | None:
    """Return the device whose twin a device is; None: it is no twin."""
    twin = cluster.devices[index]
    for other, device in enumerate(cluster.devices):
        if TWIN.format(device.name) == twin.name and device.units == twin.units:
            return other
    return None


def implementation_gains(
    cluster: Cluster, costs: CostTable, plan: Plan
) -> dict[str, tuple[int, int]]:
    """Return for each twin that a plan uses the number of its tasks, and the ns that they gain.

    A gain is against the same cores with the kernels of their own device, by the cost table; a
    task without a time there gains 0.
    """
    found: dict[str, tuple[int, int]] = {}
    for step in plan.steps:
        base = base_of(cluster, step.device) if isinstance(step, Run) else None
        if base is None or not isinstance(step, Run):
            continue
        mine, theirs = (costs.rows[step.task][device].ns for device in (step.device, base))
        num_tasks, gain_ns = found.get(cluster.devices[step.device].name, (0, 0))
        gain_ns += theirs - mine if mine is not None and theirs is not None else 0
        found[cluster.devices[step.device].name] = (num_tasks + 1, gain_ns)
    return found
