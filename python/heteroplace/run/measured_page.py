"""A loaded program -> what a page says of measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heteroplace.machine.usage import Usage
from heteroplace.model.timeline import Timeline
from heteroplace.native.execute import Executor
from heteroplace.report.html.content import Measured, MeasuredTime


def measure(
    native: Executor,
    timeline: Timeline,
    num_runs: int,
    peers: Sequence[MeasuredTime],
    peak_flops: Mapping[str, int],
) -> tuple[tuple[int, ...], Measured]:
    """Time runs without clocks of steps.

    Parameters
    ----------
    timeline
        Of a run with clocks.
    peers, peak_flops
        As of `Executor.report`.

    Returns
    -------
    tuple
        The times in ns, ascending; and what a page shows of them and of all else.
    """
    before = Usage.now()
    times_ns = tuple(sorted(int(ns) for ns in native.benchmark(num_runs)))
    others_cores = Usage.now().others_since(before)
    name = f"this plan, {num_runs} runs"
    time = MeasuredTime(name, times_ns[num_runs // 2], times_ns[0], times_ns[-1], of="runs")
    return times_ns, Measured(
        timeline, time, tuple(peers), others_cores=others_cores, peak_flops=peak_flops
    )
