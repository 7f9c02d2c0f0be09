"""A profile of a network -> each distinct kernel: its times in place, beside the roofline.

The least time of a kernel is what its operations at peak speed, or its arguments at the memory's
bandwidth, would take (`measure/machine_peaks.py`). A share of it above 1 says that arguments were
in a cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heteroplace.costs.measurement import Measurement
from heteroplace.files.measurements import KernelKey
from heteroplace.lower.kernels import KernelCalls
from heteroplace.measure.kernels.kernel_identity import describe_kernels
from heteroplace.measure.machine_peaks import Peaks
from heteroplace.stats import median

FIGURE_TITLES = {
    "calls": "calls",
    "us": "each us",
    "total_us": "all us",
    "gflops": "GFLOP/s",
    "gbytes_per_s": "GB/s",
    "roofline": "roofline",
    "op": "op",
    "shapes": "shapes",
}
"""What a table shows of `KernelTimes.figures`, and the titles; op and shapes are texts."""


@dataclass(frozen=True)
class KernelTimes:
    """Of a distinct kernel on so many cores."""

    symbol: str
    """Of the kernel among the calls of the network."""
    identity: str
    op: str
    shapes: str
    tasks: tuple[str, ...]
    """In which it runs, once for each call."""
    flops: int
    """Of a call; 0: it only moves data, or they are not known."""
    bytes: int
    """Of a call's arguments, each once."""
    ns: tuple[int, ...]
    """Of each call."""

    @property
    def each_ns(self) -> float:
        """The median of the calls, at least 1."""
        return max(1.0, median(self.ns))

    @property
    def total_ns(self) -> int:
        """The sum over the calls."""
        return sum(self.ns)

    def min_ns(self, peaks: Peaks) -> float:
        """Return the least time of all calls by the roofline, at most what they take."""
        return min(peaks.bound_ns(self.flops, self.bytes) * len(self.ns), self.total_ns)

    def figures(self, peaks: Peaks) -> dict[str, object]:
        """Return what a table says of it; `us` is the median of the calls, `total_us` the sum."""
        return {
            "op": self.op,
            "shapes": self.shapes,
            "task": self.tasks[0],
            "calls": len(self.ns),
            "us": round(self.each_ns / 1e3, 2),
            "total_us": round(self.total_ns / 1e3, 2),
            "gflops": round(self.flops / self.each_ns, 2),
            "gbytes_per_s": round(self.bytes / self.each_ns, 2),
            "roofline": round(peaks.bound_ns(self.flops, self.bytes) / self.each_ns, 3),
        }


def peaks_seen(peaks: Peaks, kernels: Sequence[KernelTimes]) -> Peaks:
    """Return the most that was seen: the peaks, or what some kernel reached.

    Arguments in caches are read faster than memory, and beside other programs peaks are measured
    too low; what has been reached can be reached.
    """
    flops = max((each.flops / each.each_ns for each in kernels), default=0.0) * 1e9
    num_bytes = max((each.bytes / each.each_ns for each in kernels), default=0.0) * 1e9
    return Peaks(max(peaks.flops_per_second, flops), max(peaks.bytes_per_second, num_bytes))


def kernel_times(
    calls: KernelCalls, measurements: Mapping[KernelKey, Measurement]
) -> dict[int, list[KernelTimes]]:
    """Return by number of cores what each distinct kernel takes there, those that take longest
    first.

    Parameters
    ----------
    calls
        Of the network on one target.
    measurements
        In place, of devices of that target.
    """
    described = describe_kernels(calls)
    sites: dict[int, dict[str, list[tuple[str, int]]]] = defaultdict(lambda: defaultdict(list))
    for key, measurement in sorted(measurements.items()):
        call = calls.calls[key.site]
        sites[key.threads][call.kernel].append((call.task, measurement.wall_ns))
    result = {}
    for threads in sorted(sites):
        times = []
        for symbol, measured in sites[threads].items():
            kernel = described[symbol]
            tasks, ns = zip(*measured, strict=True)
            about = (kernel.identity, kernel.op, kernel.shapes)
            times.append(KernelTimes(symbol, *about, tasks, kernel.flops, kernel.bytes, ns))
        result[threads] = sorted(times, key=lambda each: (-each.total_ns, each.identity))
    return result
