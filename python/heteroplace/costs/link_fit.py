"""Fit the latency and the bandwidth of a link to measured copies (as in DistIR, section 4).

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
    if len({size for size, _ in samples}) < 2:
        raise ClusterError(f"a link needs copies of two sizes or more, got {list(samples)[:4]}")
    if any(duration <= 0 or size < 0 for size, duration in samples):
        raise ClusterError("a link needs copies with sizes >= 0 bytes and durations > 0 ns")
    sizes, times = [size for size, _ in samples], [duration for _, duration in samples]
    weights = [1.0 / duration**2 for duration in times]
    slope, latency_ns = line_fit(sizes, times, weights)
    if latency_ns < 0:
        slope, latency_ns = line_fit(sizes, times, weights, intercept=0.0)
    if slope <= 0:
        raise ClusterError(
            "the durations of the copies do not grow with their sizes, so they give no bandwidth; "
            "measure larger copies, or more of them"
        )
    return round(latency_ns), max(1, round(1e9 / slope))


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
    found: dict[int, int] = {}
    least = np.inf
    for size in sorted(times_ns, reverse=True):
        least = min(least, float(np.quantile(times_ns[size], share)))
        found[size] = round(least)
    return {size: found[size] for size in sorted(found)}
