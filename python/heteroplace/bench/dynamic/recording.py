"""Recording of route decisions: what share of the processor's time it takes.

`recording/MODEL/TRACE`, a variant for each level (loads, cells). Beside the figures of every row:

- `default_ms`: the time of a run without a recording: what is added to each run is the difference;
- `recording_share`: the processor's time of the thread that makes and writes the records, of that
  of the whole process meanwhile.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from heteroplace.bench.dynamic.builds import Builds
from heteroplace.bench.dynamic.row import new_row
from heteroplace.bench.dynamic.trace_runs import Inputs, TraceRuns
from heteroplace.bench.models.routed_catalogue import ROUTED, TRACES
from heteroplace.bench.peers.stock import in_pass_context
from heteroplace.files.routes import LEVELS
from heteroplace.machine.local import local_cluster
from heteroplace.model.cluster import Cluster
from heteroplace.progress import prefixed
from heteroplace.run.executor import Executor
from heteroplace.stats import median

SLICE_S = 0.5
"""Of runs with a recording, and then of as many without one."""
NUM_SLICES = 5


def rows(only: re.Pattern[str], say: Callable[[str], None]) -> Iterator[dict[str, object]]:
    """Measure the networks and traces whose labels match; yield a row for each level."""
    for name, make in ROUTED.items():
        for trace, options in TRACES.items():
            label = f"recording/{name}/{trace}"
            if only.search(label):
                cluster = local_cluster(has_gpus=False)
                with in_pass_context():
                    made = rows_of(TraceRuns(make(), options), cluster, prefixed(say, label))
                yield from [{**row, "model": name, "trace": trace} for row in made]


def rows_of(
    runs: TraceRuns,
    cluster: Cluster,
    say: Callable[[str], None] = lambda line: None,
    slice_s: float = SLICE_S,
) -> list[dict[str, object]]:
    """Return the rows of a network, one for each level."""
    say("building")
    executable = Builds(cluster, runs.network.params).ours(runs.network.mod, say)
    executor, inputs = Executor(executable), runs.inputs()
    say("measuring")
    found = []
    for level in LEVELS:
        slices = [_slice(executor, inputs, level, slice_s) for _ in range(NUM_SLICES)]
        shares, recorded, plain = (median(list(figures)) for figures in zip(*slices, strict=True))
        found.append(
            new_row(
                *("", "", f"level {level}", "+".join(executable.solution.devices_used)),
                ours_ms=recorded / 1e6,
                default_ms=plain / 1e6,
                recording_share=shares,
            )
        )
    return found


def _slice(
    executor: Executor, inputs: Sequence[Inputs], level: int, slice_s: float
) -> tuple[float, float, float]:
    """The share of a recording, and the ns of a run with it and without."""
    with tempfile.TemporaryDirectory() as folder:
        recording = executor.record(Path(folder) / "routes.jsonl", level)
        writers = [each for each in threading.enumerate() if each.name == "heteroplace-routes"]
        clocks = [time.pthread_getcpuclockid(each.ident) for each in writers if each.ident]
        all_before = time.process_time_ns()
        before = sum(map(time.clock_gettime_ns, clocks))
        recorded = _runs(executor, inputs, slice_s)
        # What is still to be written belongs to these runs too.
        time.sleep(0.2)
        written = sum(map(time.clock_gettime_ns, clocks)) - before
        used = time.process_time_ns() - all_before
        recording.close()
    plain = _runs(executor, inputs, slice_s)
    return written / used, median(recorded), median(plain)


def _runs(executor: Executor, inputs: Sequence[Inputs], seconds: float) -> list[int]:
    times: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for each in inputs:
            start = time.perf_counter_ns()
            executor.run(each)
            times.append(time.perf_counter_ns() - start)
    return times
