"""Sizes and peak speeds -> times: the roofline, and what kernels measured elsewhere make of it.

Time = max(flops / peak, bytes / bandwidth) + launch. No kernel reaches the peaks, so where some
were measured, the roofline is multiplied by one factor per type of op that fits them best (Moirai,
section III-C, names the plain form and its weakness: it misses what is beyond both bounds).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from heteroplace.costs.device_figures import fill_device
from heteroplace.costs.work import TaskWork, main_dtype, op_types, task_work
from heteroplace.errors import MissingCostError
from heteroplace.model.cluster import Cluster, Device
from heteroplace.model.cost import Cost, CostTable, allowed_devices, build_table
from heteroplace.model.graph import TaskGraph

MEASURED_PEAKS = "peak speeds measured here, not calibrated"
"""The reason of a time, where the peaks of a device are neither given nor known by its model."""


class Speeds(NamedTuple):
    """What a roofline needs to know about a device."""

    flops_per_second: int
    bytes_per_second: int
    launch_ns: int


def device_speeds(device: Device, dtype: str = "float32") -> Speeds | None:
    """Return the peaks that `device` gives, or else those of its model; None: not known."""
    filled = fill_device(device, dtype)
    if not filled.flops_per_second or not filled.memory_bytes_per_second:
        return None
    return Speeds(filled.flops_per_second, filled.memory_bytes_per_second, device.launch_ns)


def roofline_ns(work: TaskWork, speeds: Speeds) -> int:
    """Return max(flops / peak, bytes / bandwidth) + launch, rounded up to whole nanoseconds.

    >>> roofline_ns(TaskWork(4000, 1000), Speeds(10**9, 10**9, 50))
    4050
    """
    compute_ns = -(-work.flops * 1_000_000_000 // speeds.flops_per_second)
    memory_ns = -(-work.bytes * 1_000_000_000 // speeds.bytes_per_second)
    return max(compute_ns, memory_ns) + speeds.launch_ns


SpeedMeasurement = Callable[[Cluster, Collection[str]], Mapping[str, Speeds]]
"""(cluster, names of devices) -> the speeds of those that can be measured here, by name."""


def estimate_costs(
    graph: TaskGraph,
    cluster: Cluster,
    batches: Sequence[int] = (1,),
    measure: SpeedMeasurement | None = None,
) -> CostTable:
    """Return the plain roofline for every task and device, for when nothing was measured.

    Parameters
    ----------
    batches
        Numbers of items run together, ascending from 1.
    measure
        Measures the peaks of devices that are neither given nor known; None: nothing can.

    Raises
    ------
    MissingCostError
        The peaks of a device that some task may run on are not given, known by its model or
        measured.
    """
    dtype = main_dtype(graph)
    speeds = [device_speeds(device, dtype) for device in cluster.devices]
    used = {index for ids in allowed_devices(graph, cluster) for index in ids}
    lacking = [cluster.devices[index].name for index in sorted(used) if speeds[index] is None]
    measured = measure(cluster, lacking) if measure is not None and lacking else {}
    lacking = [name for name in lacking if name not in measured]
    if lacking:
        raise MissingCostError(
            f"cannot estimate costs on {', '.join(lacking)}: flops_per_second and "
            f"memory_bandwidth are needed; add them to cluster {cluster.name!r}, or "
            f"'model' with the name of a known device"
        )

    def cost(task: int, device: int, batch: int = 1) -> Cost:
        speed, reason = speeds[device], "peak speeds, not calibrated"
        if speed is None:
            speed, reason = measured[cluster.devices[device].name], MEASURED_PEAKS
        return Cost.roofline(roofline_ns(task_work(graph, task, batch), speed), reason)

    return build_table(graph, cluster, cost, tuple(batches))


class Factor(NamedTuple):
    """By how much measured times differ from the roofline."""

    value: float
    num_samples: int
    basis: str
    """Type of op that it was fitted to, ALL_OPS for all."""


class RatioSums(NamedTuple):
    """Sums over some samples of `a = roofline / time`: all that a least-squares factor needs."""

    first: float = 0.0
    """sum(a)"""
    second: float = 0.0
    """sum(a^2)"""
    num_samples: int = 0

    def plus(self, other: RatioSums) -> RatioSums:
        """Return the sums over the samples of both."""
        return RatioSums(
            self.first + other.first,
            self.second + other.second,
            self.num_samples + other.num_samples,
        )

    def minus(self, other: RatioSums) -> RatioSums:
        """Return the sums without the samples of `other`, which are among these."""
        return RatioSums(
            self.first - other.first,
            self.second - other.second,
            self.num_samples - other.num_samples,
        )


_NOTHING = RatioSums()


class Calibration:
    """One factor per type of op, least squares in the relative error.

    `f = sum(a) / sum(a^2)` minimises the sum of `((f * roofline - time) / time)^2`. Where an op was
    never measured, the factor of tasks that begin with the same op counts, and else that of all.
    """

    def __init__(self) -> None:
        """Begin without samples."""
        self._sums: dict[str, RatioSums] = {}

    def add(self, op: str, sums: RatioSums) -> None:
        """Add samples of an op."""
        for key in op_types(op):
            self._sums[key] = self._sums.get(key, RatioSums()).plus(sums)

    def factor(self, op: str, left_out: RatioSums = _NOTHING) -> Factor | None:
        """Return the factor for an op; None: nothing was measured.

        Parameters
        ----------
        left_out
            Samples of `op` that do not count, for cross-validation.
        """
        for key in op_types(op):
            sums = self._sums.get(key, _NOTHING)
            if sums.num_samples > left_out.num_samples:
                others = sums.minus(left_out)
                if others.second <= 0:
                    continue  # nothing but rounding is left
                return Factor(others.first / others.second, others.num_samples, key)
        return None
