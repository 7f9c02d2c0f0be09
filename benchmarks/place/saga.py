"""`place --saga`: list schedulers beside those of SAGA (anrg-saga) on its own generators.

Both run here, in one process, on the same graphs and networks. Makespans are in units of SAGA's
time, each by its own program: they are equal up to the rounding of our integers. Processor time:
one run of SAGA's, the median of several of ours. "core" schedules; "whole" also turns SAGA's task
graph and network into our problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from benchmarks.peers.saga import (
    UNIT_NS,
    SagaInstance,
    require_saga,
    saga_instances,
    saga_schedulers,
)
from heteroplace.native.list import plan_by
from heteroplace.report.tables import format_table
from heteroplace.stats import median

SCALES = (4, 8)
"""About 2**scale tasks."""
_RUNS = 5

T = TypeVar("T")
Row = dict[str, object]
Say = Callable[[str], None]


def saga_rows(say: Say, scales: Sequence[int] = SCALES, seed: int = 0) -> list[Row]:
    """Run all schedulers on an instance of each family and scale.

    Returns
    -------
    list of dict
        Keys: graph, tasks, scheduler (SAGA's name), list_parts, saga_makespan, makespan,
        difference (of ours over theirs, relative), saga_cpu_seconds, core_cpu_seconds,
        whole_cpu_seconds, core_times_faster, whole_times_faster.

    Raises
    ------
    MissingPackageError
        SAGA is not installed.
    """
    require_saga()
    rows = []
    for scale in scales:
        for instance in saga_instances(scale, seed):
            found = _rows_of(instance)
            worst = max(abs(float(str(row["difference"]))) for row in found)
            say(f"{instance.name}: {len(found)} schedulers, largest difference {worst:.1e}")
            rows += found
    return rows


def saga_table(rows: list[Row]) -> str:
    """Return the rows as text."""
    headers = ["graph", "scheduler", "parts", "theirs", "ours", "theirs cpu s", "core", "whole"]
    cells = [
        [
            *(str(row[key]) for key in ("graph", "scheduler", "list_parts")),
            *(f"{float(str(row[key])):.6f}" for key in ("saga_makespan", "makespan")),
            f"{float(str(row['saga_cpu_seconds'])):.4f}",
            *(f"{row[key]}x" for key in ("core_times_faster", "whole_times_faster")),
        ]
        for row in rows
    ]
    return format_table(headers, cells, "<<<>>>>>")


def _rows_of(instance: SagaInstance) -> list[Row]:
    problem, build_s = _timed(instance.problem)
    _, arrays_s = _timed(lambda: problem.native)
    rows = []
    for name, (parts, schedule) in saga_schedulers().items():
        theirs, theirs_s = _timed(partial(schedule, instance.network, instance.task_graph))
        runs = [_timed(partial(plan_by, problem.native, parts)) for _ in range(_RUNS)]
        ours, core_s = runs[0][0].makespan_ns / UNIT_NS, median([seconds for _, seconds in runs])
        whole_s = core_s + build_s + arrays_s
        rows.append(
            {
                "graph": instance.name,
                "tasks": len(problem.graph.tasks),
                "scheduler": name,
                "list_parts": ",".join(parts),
                "saga_makespan": theirs,
                "makespan": ours,
                "difference": (ours - theirs) / theirs,
                "saga_cpu_seconds": theirs_s,
                "core_cpu_seconds": core_s,
                "whole_cpu_seconds": whole_s,
                "core_times_faster": round(theirs_s / core_s, 1),
                "whole_times_faster": round(theirs_s / whole_s, 1),
            }
        )
    return rows


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    begin = time.process_time()
    found = run()
    return found, time.process_time() - begin
