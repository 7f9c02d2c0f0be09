"""`bench place --scaling`: what a solver gains from more threads.

The target is the plan that one thread has at the end of the budget: its makespan, or its time from
one item to the next with `--objective throughput`. A row says how soon several
threads have one at least as short: speedup = (seconds of one thread) / (theirs), the median over
seeds. A row has the keys

    graph, tasks, cluster, solver, threads, budget_seconds, seeds, reached, plan_ratio,
    measured_speedup, simulated_speedup

`plan_ratio` is that time at the end of the budget over that of one thread, the median too;
`reached` on how many seeds the target was met, the others count as the whole budget. Up to as many
threads as there are cores, a speedup is measured. More threads than cores take turns on them: they
have longer by threads / cores and their seconds are divided by it, which is what as many cores
would take whose caches and memory are no narrower; such a speedup is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heteroplace.bench.place.processes import Processes
from heteroplace.bench.suites.catalogue import select
from heteroplace.control_groups import usable_cores
from heteroplace.errors import SolverError
from heteroplace.report.tables import format_table
from heteroplace.solve import get_solver
from heteroplace.stats import median

if TYPE_CHECKING:
    from heteroplace.bench.place.command import PlaceOptions

THREADS = (1, 2, 4, 8, 16)
SEEDS = 3
SOLVER = "auto"
"""Without `--solvers`."""
GRAPHS = r"^(rwnn/(er10x10-sdep3|er32x10)|moirai/gpt3-330m/inter|layered/1000)$"
"""Without `--only`: graphs on which one thread still gains after seconds."""

Row = dict[str, object]
Say = Callable[[str], None]


def scaling_rows(options: PlaceOptions, say: Say, counts: Sequence[int] = THREADS) -> list[Row]:
    """Run the solvers with each number of threads; see the module for the keys.

    Parameters
    ----------
    options
        `threads` and `jobs` are not used: one solver runs at a time. Seeds count from `seed`.
    counts
        Numbers of threads, of which the first is 1.

    Raises
    ------
    SolverError
        A solver's name is unknown, or there is no such graph.
    HeteroPlaceError
        An instance cannot be built.
    """
    solvers = options.solvers or (SOLVER,)
    for name in solvers:
        get_solver(name)
    chosen = select(options.only or GRAPHS)
    if not chosen:
        raise SolverError(f"no instance is called like {options.only!r}; `--only .` takes all")
    rows = []
    for instance in chosen:
        reference = Processes(instance.name, options.worker_arguments, options.budget_s).reference()
        for solver in solvers:
            answers = {
                threads: [
                    _solve(instance.name, solver, replace(options, seed=seed), threads)
                    for seed in range(options.seed, options.seed + SEEDS)
                ]
                for threads in counts
            }
            for threads in counts:
                row = {
                    "graph": instance.name,
                    "tasks": reference["tasks"],
                    "cluster": reference["cluster"],
                    "solver": solver,
                    "threads": threads,
                    "budget_seconds": options.budget_s,
                    "seeds": SEEDS,
                }
                rows.append(row | compare(answers[1], answers[threads], threads, options.budget_s))
                say(_summary(rows[-1]))
    return rows


def compare(
    one: Sequence[Row], several: Sequence[Row], threads: int, budget_s: float, cores: int = 0
) -> Row:
    """Return what `threads` threads gain over one.

    Parameters
    ----------
    one, several
        Answers of `worker.py`, seed by seed, with their incumbents as [seconds, ns].
    cores
        On which they ran; 0: those of this process.
    """
    slower = max(1.0, threads / (cores or usable_cores()))
    speedups, ratios, reached = [], [], 0
    for alone, together in zip(one, several, strict=True):
        target, at_end = _time_ns(alone), _time_ns(together)
        if target is None or at_end is None:
            continue
        mine, theirs = _seconds_to(alone, target), _seconds_to(together, target)
        reached += theirs is not None
        seconds = budget_s if theirs is None else theirs / slower
        speedups.append((budget_s if mine is None else mine) / max(seconds, 1e-4))
        ratios.append(at_end / target if target else 1.0)
    speedup = round(median(speedups), 3) if speedups else None
    return {
        "reached": reached,
        "plan_ratio": round(median(ratios), 5) if ratios else None,
        "measured_speedup": speedup if slower == 1.0 else None,
        "simulated_speedup": speedup if slower > 1.0 else None,
    }


def scaling_table(rows: list[Row]) -> str:
    """Return the rows as text."""
    keys = ("graph", "tasks", "solver", "threads", "reached")
    figures = ("plan_ratio", "measured_speedup", "simulated_speedup")
    cells = [
        [str(row[key]) for key in keys]
        + ["-" if row[key] is None else f"{row[key]:.3f}" for key in figures]
        for row in rows
    ]
    headers = [*keys, "plan / one thread", "speedup, measured", "simulated"]
    return format_table(headers, cells, "<><>>>>>")


def _solve(graph: str, solver: str, options: PlaceOptions, threads: int) -> Row:
    budget_s = options.budget_s * max(1.0, threads / usable_cores())
    told = replace(options, budget_s=budget_s)
    arguments = (*told.worker_arguments, f"--threads={threads}")
    return Processes(graph, arguments, budget_s).solve(solver)


def _time_ns(answer: Row) -> int | None:
    """What its incumbents say, of its plan: ns of an item or the makespan; None: it has no plan."""
    ns = answer["makespan"] if answer["item_ns"] is None else answer["item_ns"]
    return ns if isinstance(ns, int) else None


def _seconds_to(answer: Row, target_ns: int) -> float | None:
    """When its plan was at most as long; None: never."""
    told = answer["incumbents"] if isinstance(answer["incumbents"], list) else []
    told = [*told, (answer["best_seconds"], _time_ns(answer))]
    return next((float(seconds) for seconds, ns in told if ns <= target_ns), None)


def _summary(row: Row) -> str:
    speedup = row["measured_speedup"] or row["simulated_speedup"]
    return f"{row['graph']}: {row['solver']}, {row['threads']} threads: {speedup}"
