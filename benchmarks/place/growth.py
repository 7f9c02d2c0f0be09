"""`benchmarks place --growth`: processor time of the core's parts against the graph's size.

Two families of one shape and growing depth, so that time per task is constant if an algorithm is
linear: layered graphs (equal width, density and costs), and transformers (equal layers). Median of
several runs in this process; making the graph and the core's arrays is not counted. HEFT, ETF and
m-ETF are timed up to the arrays of the plan; the simulator's time includes handing it a plan's
steps. "search" is one evaluation of a local change, the mean over a second of search on one thread.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

from benchmarks.plots import Series
from heteroplace.native.core_search import search_plans
from heteroplace.native.list import etf, heft, m_etf
from heteroplace.native.simulate import simulate_steps
from heteroplace.report.tables import format_table
from heteroplace.solve.problem import Problem
from heteroplace.stats import half_spread, median
from zoo.graphs.catalogue import layered, transformer
from zoo.graphs.layered import Layered
from zoo.graphs.transformer import Transformer

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
FAMILIES = ("layered", "transformer")
SEARCH = "search"
_RUNS = 5
_FILL = 0.3
"""Memory that is not tight: HEFT would run into full memories at some size and change its way."""
_CLUSTER = "inter"
_HEADS, _HIDDEN, _LENGTH = 16, 1024, 2048
"""Of a layer of the transformers, 203 tasks."""
_SEARCH_S = 1.0
_MAX_SETUP_S = 30.0

Row = dict[str, object]


def growth_rows(
    say: Callable[[str], None],
    sizes: Sequence[int] = SIZES,
    families: Sequence[str] = FAMILIES,
    search_s: float = _SEARCH_S,
) -> list[Row]:
    """Measure all sizes.

    Returns
    -------
    list of dict
        Keys: family, what ("heft", "etf", "m-etf", "simulator", "search"), tasks, edges, steps,
        cpu_seconds (median; "search": of one evaluation), spread_seconds (half the interquartile
        range), runs, ns_per_task.
    """
    rows = []
    for family in families:
        for size in sizes:
            problem = _problem(family, size)
            tasks = len(problem.graph.tasks)
            figures: Row = {
                "tasks": tasks,
                "edges": sum(len(tensor.consumers) for tensor in problem.graph.tensors),
            }
            for what, (action, steps) in _actions(problem).items():
                row = _row(what, _measure(action), tasks)
                rows.append({"family": family} | row | figures | {"steps": steps})
                say(f"{family}, {tasks} tasks: {what}: {float(str(row['cpu_seconds'])):.6f} s")
            evaluation_s = _evaluation_s(problem, search_s)
            if evaluation_s is not None:
                row = _row(SEARCH, [evaluation_s], tasks)
                rows.append({"family": family} | row | figures | {"steps": 0})
                say(f"{family}, {tasks} tasks: one evaluation: {row['cpu_seconds']} s")
    return sorted(rows, key=lambda row: (str(row["family"]), str(row["what"])))


def growth_table(rows: list[Row]) -> str:
    """Return the rows as text."""
    cells = [
        [
            str(row["family"]),
            str(row["what"]),
            f"{row['tasks']:,}",
            f"{row['edges']:,}",
            f"{row['steps']:,}" if row["steps"] else "-",
            _seconds(row["cpu_seconds"]),
            _seconds(row["spread_seconds"]),
            f"{row['ns_per_task']:,}" if row["what"] != SEARCH else "-",
        ]
        for row in rows
    ]
    headers = ["family", "what", "tasks", "edges", "steps", "cpu s", "spread", "ns per task"]
    return format_table(headers, cells, "<<>>>>>>")


def growth_series(rows: list[Row]) -> list[Series]:
    """Return (tasks, seconds) of each part of the core and family, for a plot.

    Evaluations of the search are left out: they do not take the time of a plan.
    """
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["what"] != SEARCH:
            point = (float(str(row["tasks"])), float(str(row["cpu_seconds"])))
            series.setdefault(f"{row['what']}, {row['family']}", []).append(point)
    return [Series(name, tuple(points)) for name, points in series.items()]


def _problem(family: str, size: int) -> Problem:
    if family == "layered":
        return layered(Layered(size), _FILL)
    per_layer = Transformer("", 1, _HIDDEN, _HEADS, 1, _LENGTH).num_tasks
    layers = max(1, round(size / per_layer))
    model = Transformer(f"depth{layers}", layers, _HIDDEN, _HEADS, 1, _LENGTH)
    return transformer(model, _CLUSTER, _FILL)


def _actions(problem: Problem) -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured, and how many steps the plan of it has."""
    native = problem.native
    devices = range(len(problem.cluster.devices))
    makers: dict[str, Callable[[], object]] = {
        "heft": lambda: heft(native, devices),
        "etf": lambda: etf(native),
        "m-etf": lambda: m_etf(native),
    }
    counts = {
        "heft": len(heft(native, devices).rows),
        "etf": len(etf(native).rows),
        "m-etf": len(m_etf(native).rows),
    }
    steps = heft(native, devices).steps
    makers["simulator"] = lambda: simulate_steps(native, steps)
    counts["simulator"] = len(steps)
    return {what: (make, counts[what]) for what, make in makers.items()}


def _evaluation_s(problem: Problem, search_s: float) -> float | None:
    """Processor seconds of one evaluation, what the search does around it included.

    What it does before the first one is measured by a search that ends there. None: however long
    it was given, there was none.
    """
    start = heft(problem.native, range(len(problem.cluster.devices)))

    def spend(max_evaluations: int | None, limit_s: float) -> tuple[float, int]:
        begin = time.process_time()
        found = search_plans(
            problem.native,
            [start],
            max_evaluations=max_evaluations,
            time_limit_s=limit_s,
            seed=0,
            threads=1,
            finds_bound=False,
        )
        return time.process_time() - begin, found.num_evaluations

    wall = time.perf_counter()
    before_s, first = spend(1, _MAX_SETUP_S)
    limit_s = time.perf_counter() - wall + search_s
    while limit_s < 2 * _MAX_SETUP_S:
        all_s, count = spend(None, limit_s)
        if count > first and all_s > before_s:
            return (all_s - before_s) / (count - first)
        limit_s *= 2  # other programs had the core
    return None


def _row(what: str, times: Sequence[float], tasks: int) -> Row:
    middle = median(times)
    return {
        "what": what,
        "cpu_seconds": float(f"{middle:.4g}"),
        "spread_seconds": float(f"{half_spread(times):.4g}"),
        "runs": len(times),
        "ns_per_task": round(middle / tasks * 1e9),
    }


def _seconds(value: object) -> str:
    seconds = float(str(value))
    return f"{seconds:.5f}" if seconds >= 1e-4 or seconds == 0 else f"{seconds:.2e}"


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
