"""A run of a compiled model -> the page that shows it, for `heteroplace run --report`."""

from __future__ import annotations

import shlex
import sys

from heteroplace.cli.run_file import Ran
from heteroplace.entries import load_entry
from heteroplace.model.solution import Solution
from heteroplace.report.html.content import Measured, MeasuredTime
from heteroplace.solve.solve_report import write_report
from heteroplace.stats import quantile

_MEASURE_SPEEDS = "heteroplace.measure.peak_speeds:measure_speeds"
"""Loaded for a report: it needs TVM."""


def write_run_report(ran: Ran, path: str, model: str) -> None:
    """Write the page of a run of `model`: its times, its peers' times, the peaks of its devices."""
    times = ran.times_ns
    middle_ns = round(quantile(times, 0.5))
    time = MeasuredTime("this plan", middle_ns, times[0], times[-1], of="runs")
    in_turns = None
    if ran.peer_times:
        ours = ran.peer_times[0]
        in_turns = MeasuredTime("this plan", ours.ours_ns, *ours.ours_rounds_ns)
    measured = Measured(
        ran.timeline,
        time,
        tuple(
            MeasuredTime(
                f"{peer.name} {peer.version}".rstrip(),
                peer.peer_ns,
                *peer.peer_rounds_ns,
                speedup=peer.speedup,
            )
            for peer in ran.peer_times
        ),
        in_turns=in_turns,
        others_cores=ran.others_cores,
        peak_flops=measured_peaks(ran.solution),
    )
    write_report(
        ran.solution,
        path,
        measured=measured,
        memory=ran.manifest.memory,
        properties=ran.manifest.properties,
        command=shlex.join(["heteroplace", *sys.argv[1:]]),
        file=model,
    )


def measured_peaks(solution: Solution) -> dict[str, int]:
    """Measure the peak operations per second of the CPU devices in use; empty: all are known."""
    speeds = load_entry(_MEASURE_SPEEDS)(solution.cluster, solution.devices_used)
    return {name: speed.flops_per_second for name, speed in speeds.items()}
