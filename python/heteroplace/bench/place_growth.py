"""`bench place --growth`: processor time of HEFT, ETF and the simulator against the graph's size.

Layered graphs of one shape (equal width, density and costs) and growing depth, so that time per
task is constant if the algorithm is linear. Median of several runs in this process; making the
graph is not counted, and the core's arrays are made before. The simulator's time includes handing
it the steps, the schedulers' includes handing back the plan.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from heteroplace.bench.line_plot import Series, log_log_svg
from heteroplace.bench.suites.catalogue import layered
from heteroplace.bench.suites.layered import Layered
from heteroplace.report.tables import format_table
from heteroplace.solve import SOLVERS
from heteroplace.solve.base import Problem, SolveOptions

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
_RUNS = 5
_FILL = 0.3
"""Memory that is not tight: HEFT would run into full memories at some size and change its way."""
_BUDGET_S = 600.0

Row = dict[str, object]


def growth_rows(say: Callable[[str], None], sizes: Sequence[int] = SIZES) -> list[Row]:
    """Measure all sizes.

    Returns
    -------
    list of dict
        Keys: what ("heft", "etf", "simulator"), tasks, edges, steps, cpu_seconds (median),
        spread_seconds (half the interquartile range), runs, ns_per_task.
    """
    rows = []
    for size in sizes:
        problem = layered(Layered(size), _FILL)
        edges = sum(len(tensor.consumers) for tensor in problem.graph.tensors)
        for what, (action, steps) in _actions(problem).items():
            times = _measure(action)
            median = statistics.median(times)
            quartiles = statistics.quantiles(times, n=4)
            rows.append(
                {
                    "what": what,
                    "tasks": size,
                    "edges": edges,
                    "steps": steps,
                    "cpu_seconds": round(median, 6),
                    "spread_seconds": round((quartiles[2] - quartiles[0]) / 2, 6),
                    "runs": len(times),
                    "ns_per_task": round(median / size * 1e9),
                }
            )
            say(f"{what}, {size} tasks: {median * 1e3:.1f} ms")
    return sorted(rows, key=lambda row: str(row["what"]))


def growth_table(rows: list[Row]) -> str:
    """Return the rows as text."""
    cells = [
        [
            str(row["what"]),
            f"{row['tasks']:,}",
            f"{row['edges']:,}",
            f"{row['steps']:,}",
            f"{row['cpu_seconds']:.4f}",
            f"{row['spread_seconds']:.4f}",
            f"{row['ns_per_task']:,}",
        ]
        for row in rows
    ]
    headers = ["what", "tasks", "edges", "steps", "cpu s", "spread", "ns per task"]
    return format_table(headers, cells, "<>>>>>>")


def write_growth_plot(rows: list[Row], path: Path) -> None:
    """Write the times over the sizes as a self-contained SVG, both axes logarithmic."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        point = (float(str(row["tasks"])), float(str(row["cpu_seconds"])))
        series.setdefault(str(row["what"]), []).append(point)
    path.write_text(
        log_log_svg(
            [Series(name, tuple(points)) for name, points in series.items()],
            title="Processor time against the size of layered graphs",
            x_label="tasks",
            y_label="seconds",
        )
    )


def _actions(problem: Problem) -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured, and how many steps the plan of it has."""
    native = problem.native
    devices = range(len(problem.cluster.devices))
    steps = native.heft(devices).steps
    actions: dict[str, tuple[Callable[[], object], int]] = {
        "heft": (lambda: native.heft(devices), len(steps)),
        "simulator": (lambda: native.simulate(steps), len(steps)),
    }
    if "etf" in SOLVERS:
        etf, options = SOLVERS["etf"], SolveOptions(time_limit_s=_BUDGET_S)
        plan = etf.solve(problem, options).plan
        actions["etf"] = (lambda: etf.solve(problem, options), len(plan.steps))
    return actions


def _measure(action: Callable[[], object]) -> list[float]:
    """Processor seconds of each run; the collector, whose time grows with the heap, is off."""
    times = []
    was_on = gc.isenabled()
    gc.disable()
    try:
        for _ in range(_RUNS):
            begin = time.process_time()
            action()
            times.append(time.process_time() - begin)
    finally:
        if was_on:
            gc.enable()
    return times
