"""Fit latency and bandwidth of a link to measured copies, and those of collectives (DistIR, 4).

Unlike DistIR, residuals are relative to the measured time: with absolute ones the largest copies
would decide alone, and the latency, which small copies pay, would be noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from heteroplace.errors import ClusterError
from heteroplace.stats import line_fit


def link_from_samples(samples: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return (latency_ns, bytes_per_second) of the line that fits best.

    Minimises the sum of squared relative errors of `latency + bytes / bandwidth`. If the best
    latency is negative it is taken to be 0, and the bandwidth is fitted alone.

    Parameters
    ----------
    samples : sequence of (bytes, ns)
        Size and duration of each copy; durations > 0 and at least two different sizes.

    Raises
    ------
    ClusterError
        Too few sizes, a duration that is not positive, or durations that do not grow with the size.

    >>> link_from_samples([(0, 5_000), (1_000_000, 105_000)])
    (5000, 10000000000)
    """
    _check(samples, "link", "copies")
    slope, latency_ns = _relative_line(samples)
    if slope <= 0:
        raise ClusterError(
            "the durations of the copies do not grow with their sizes, so they give no bandwidth; "
            "measure larger copies, or more of them"
        )
    return round(latency_ns), max(1, round(1e9 / slope))


def collective_from_samples(samples: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return (ns_per_byte, launch_ns) of one kind of collective over groups of one size.

    DistIR fits `a bytes + b n + c` for each number n of members; with n fixed, b n and c are one
    number. As `link_from_samples`, and a launch that does not depend on the size is enough: a
    collective whose members share a memory may move nothing.

    Parameters
    ----------
    samples : sequence of (bytes, ns)
        Size and duration of each; durations > 0 and at least two different sizes.

    Raises
    ------
    ClusterError
        Too few sizes, or a duration that is not positive.

    >>> per_byte_ns, launch_ns = collective_from_samples([(0, 5_000), (1_000_000, 105_000)])
    >>> round(per_byte_ns, 6), round(launch_ns)
    (0.1, 5000)
    """
    _check(samples, "collective", "runs")
    slope, launch_ns = _relative_line(samples)
    if slope >= 0:
        return slope, launch_ns
    # The constant of least relative error.
    weights = [1.0 / duration**2 for _, duration in samples]
    return 0.0, float(np.average([duration for _, duration in samples], weights=weights))


def _check(samples: Sequence[tuple[int, int]], what: str, runs: str) -> None:
    if len({size for size, _ in samples}) < 2:
        raise ClusterError(f"a {what} needs {runs} of two sizes or more, got {list(samples)[:4]}")
    if any(duration <= 0 or size < 0 for size, duration in samples):
        raise ClusterError(f"a {what} needs {runs} with sizes >= 0 bytes and durations > 0 ns")


def _relative_line(samples: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """(slope, intercept >= 0) of the line of least squares in the relative error."""
    sizes, times = zip(*samples, strict=True)
    weights = [1.0 / duration**2 for duration in times]
    slope, intercept = line_fit(sizes, times, weights)
    if intercept < 0:
        slope, intercept = line_fit(sizes, times, weights, intercept=0.0)
    return slope, intercept


def undisturbed_ns(times_ns: Mapping[int, Sequence[int]], share: float) -> dict[int, int]:
    """Return for each size the time that it takes undisturbed, which never falls with the size.

    Other programs only ever lengthen a copy or a wait, and less takes no longer than more over the
    same link. So the time that a `share` of a size's samples is below is an upper bound for this
    size and for all smaller ones, and the least of these bounds is taken.

    Parameters
    ----------
    times_ns : mapping of int to sequence of int
        For each size in bytes one sample or more, in ns.
    share : float
        0: the shortest sample, for samples among which few are undisturbed; 0.25: the lower
        quartile, for those that are mostly undisturbed.

    >>> undisturbed_ns({4: [900, 300], 1000: [200, 800], 4000: [500, 600]}, share=0)
    {4: 200, 1000: 200, 4000: 500}
    """
    times: dict[int, int] = {}
    least = np.inf
    for size in sorted(times_ns, reverse=True):
        least = min(least, float(np.quantile(times_ns[size], share)))
        times[size] = round(least)
    return {size: times[size] for size in sorted(times)}
