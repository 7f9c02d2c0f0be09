"""`benchmarks place --peers`: our m-ETF and m-SCT beside the same algorithms in plain Python.

Both run here, in one process, on the same graphs, and the same simulator times their plans.
Processor time; the median of several runs of ours, one run of plain Python. "core" is what
schedules as published, with the linear programme of m-SCT; "solver" also turns the problem into
the core's arrays, proves the cheap bound, and makes and simulates the plan.

Baechi's own times are those of its publication's program (`PUBLISHED_S`), quoted and not measured:
other machines, other graphs of about the same size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.peers.plain_baechi import PlainResult, plain_m_etf, plain_m_sct
from heteroplace.native.list import evaluate_order, m_etf, m_sct, mean_graph
from heteroplace.report.tables import format_table
from heteroplace.solve import SOLVERS
from heteroplace.solve.baselines.m_sct import THRESHOLD
from heteroplace.solve.baselines.m_sct_lp import favourite_children
from heteroplace.solve.problem import Problem, SolveOptions
from heteroplace.stats import median
from zoo.graphs.catalogue import get_instance

SMALL, LARGE = "moirai/af2-87m/inter", "moirai/af2-3.2b/inter"
"""5,136 and 50,560 tasks."""
PUBLISHED_S = {"m-etf": 40.0, "m-sct": 122.0}
"""Baechi's Python at 50,000 ops, in seconds."""
_PUBLISHED_TASKS = 50_000
_PLAIN = "plain Python"
_RUNS = 5

Row = dict[str, object]
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Peer:
    """One way to run an algorithm."""

    solver: str
    name: str
    run: Callable[[Problem], int]
    """Returns the makespan of the plan in ns."""
    runs: int


def peer_rows(say: Say, instances: tuple[str, ...] = (SMALL, LARGE)) -> list[Row]:
    """Measure all peers on all instances.

    Returns
    -------
    list of dict
        Keys: graph, tasks, solver, peer ("core", "solver" or "plain Python"), cpu_seconds (median),
        runs, makespan in ns, times_faster (plain Python's processor time over this one; None for
        plain Python itself), published_seconds and times_faster_than_published (None where the
        graph is not of the published size).
    """
    rows = []
    for instance in instances:
        problem = get_instance(instance).build()
        for solver in ("m-etf", "m-sct"):
            found = []
            for peer in _peers(solver):
                row = _measure(peer, problem)
                found.append(row)
                say(f"{instance}: {solver}, {peer.name}: {row['cpu_seconds']} s")
            rows += _finish(instance, len(problem.graph.tasks), solver, found)
    return rows


def peer_table(rows: list[Row]) -> str:
    """Return the rows as text, with a line on what was not measured."""
    headers = [
        "graph",
        "tasks",
        "solver",
        "what",
        "cpu s",
        "makespan ms",
        "vs plain",
        "vs published",
    ]
    cells = [
        [
            str(row["graph"]),
            f"{row['tasks']:,}",
            str(row["solver"]),
            str(row["peer"]),
            f"{row['cpu_seconds']:.4f}",
            f"{int(str(row['makespan'])) / 1e6:.3f}",
            _times(row["times_faster"]),
            _times(row["times_faster_than_published"]),
        ]
        for row in rows
    ]
    quoted = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in PUBLISHED_S.items())
    return (
        format_table(headers, cells, "<><<>>>>")
        + f"\n\nMeasured here in one run: all but `vs published`, which divides the published times"
        f"\nof Baechi's Python at {_PUBLISHED_TASKS:,} ops ({quoted}) by ours."
    )


def _peers(solver: str) -> list[_Peer]:
    def core(problem: Problem) -> int:
        if solver == "m-etf":
            return m_etf(problem.native).makespan_ns
        graph = mean_graph(problem.native)
        return m_sct(problem.native, favourite_children(graph, THRESHOLD)).makespan_ns

    def whole(problem: Problem) -> int:
        fresh = Problem(problem.graph, problem.cluster, problem.costs)
        return SOLVERS[solver].solve(fresh, SolveOptions()).objective_ns

    def plain(problem: Problem) -> int:
        schedule = plain_m_etf if solver == "m-etf" else plain_m_sct
        return judged_ns(problem, schedule(problem, mean_graph(problem.native)))

    return [
        _Peer(solver, "core", core, _RUNS),
        _Peer(solver, "solver", whole, _RUNS),
        _Peer(solver, _PLAIN, plain, 1),
    ]


def judged_ns(problem: Problem, found: PlainResult) -> int:
    """Return the simulated makespan of the placement in its order."""
    return evaluate_order(problem.native, found.placement, found.order).makespan_ns


def _measure(peer: _Peer, problem: Problem) -> Row:
    _ = problem.native  # Made before: only "solver" counts it.
    times, makespan = [], 0
    for _run in range(peer.runs):
        begin = time.process_time()
        makespan = peer.run(problem)
        times.append(time.process_time() - begin)
    seconds = round(median(times), 4)
    return {"peer": peer.name, "cpu_seconds": seconds, "runs": peer.runs, "makespan": makespan}


def _finish(graph: str, tasks: int, solver: str, found: list[Row]) -> list[Row]:
    plain = next(float(str(row["cpu_seconds"])) for row in found if row["peer"] == _PLAIN)
    published = PUBLISHED_S[solver] if tasks >= _PUBLISHED_TASKS else None
    rows = []
    for row in found:
        seconds = float(str(row["cpu_seconds"]))
        is_plain = row["peer"] == _PLAIN
        ratio = None if is_plain else round(plain / seconds, 1)
        beside = None if is_plain or published is None else round(published / seconds, 1)
        rows.append(
            {"graph": graph, "tasks": tasks, "solver": solver}
            | row
            | {
                "times_faster": ratio,
                "published_seconds": published,
                "times_faster_than_published": beside,
            }
        )
    return rows


def _times(ratio: object) -> str:
    return f"{ratio:.0f}x" if isinstance(ratio, float) else "-"
