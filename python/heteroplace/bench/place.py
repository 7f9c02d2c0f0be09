"""`bench place`: solvers against each other on the suites, in one table and one JSON.

Every (graph, solver) pair runs in a process of its own (`place_worker`), one after the other. A row
has the keys

    graph, tasks, cluster, solver, seconds, peak_mb, makespan, bound, gap, vs_best_single, memory_ok

and congestion, cpu_seconds, build_seconds, note. Makespan and bound are in ns; `seconds` is the
wall time of the solve, and `peak_mb` the most memory of its process, in 10**6 bytes. `bound` is the
best that any solver of the run has proven for the graph, gap = (makespan - bound) / makespan.
`vs_best_single` is the makespan of the best device on which everything fits over that of the plan,
so above 1 is faster; null where none fits. A solver that refuses, fails or makes an invalid plan
has makespan null, and `note` says why.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from heteroplace.bench.place_growth import growth_rows, growth_table, write_growth_plot
from heteroplace.bench.suites.catalogue import QUICK, select
from heteroplace.errors import HeteroPlaceError
from heteroplace.report.tables import format_table
from heteroplace.solve import SOLVERS, get_solver
from heteroplace.solve.base import SolveOptions

Row = dict[str, object]
Say = Callable[[str], None]

COLUMNS = (
    "graph",
    "tasks",
    "cluster",
    "solver",
    "seconds",
    "peak_mb",
    "makespan",
    "bound",
    "gap",
    "vs_best_single",
    "memory_ok",
)
"""Keys of a row that readers of the JSON may rely on."""

_GRACE_S = 300.0
"""What a process may take beyond ten times its budget: building, checking, a solver that ignores
the budget. Then it is ended."""
_NOTE_CHARACTERS = 300


@dataclass(frozen=True)
class PlaceOptions:
    """What is run."""

    only: str | None = None
    """Regular expression for instances; None: a small set of each family."""
    solvers: tuple[str, ...] = ()
    """Names of solvers; empty: all."""
    budget_s: float = 10.0
    """Time limit given to each solver, in seconds."""
    seed: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; `--json` is that of all benchmarks."""
    parser.set_defaults(only=None)
    parser.add_argument("--solvers", metavar="A,B", help="only these (default: all)")
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="S", help="seconds per solver (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the solvers")
    parser.add_argument(
        "--growth",
        action="store_true",
        help="time against size instead: 1,000 to 200,000 tasks; with --json FILE also FILE.svg",
    )
    parser.epilog = (
        f"Without --only: {', '.join(QUICK)}. All instances: --only . "
        f"Solvers: {', '.join(SOLVERS)}."
    )


def run(arguments: argparse.Namespace, say: Say) -> list[Row]:
    """Run what the command line asks for; return the rows.

    Raises
    ------
    SolverError
        A solver's name is unknown, or the budget or the seed is out of range.
    """
    if arguments.growth:
        rows = growth_rows(say)
        if arguments.json is not None:
            plot = arguments.json.with_suffix(".svg")
            write_growth_plot(rows, plot)
            say(f"plot: {plot}")
        return rows
    names = tuple(filter(None, (arguments.solvers or "").split(",")))
    return place_rows(PlaceOptions(arguments.only, names, arguments.budget, arguments.seed), say)


def table(rows: list[Row]) -> str:
    """Return the rows of either mode as text."""
    if "ns_per_task" in rows[0]:
        return growth_table(rows)
    headers = ["graph", "tasks", "solver", "wall s", "MB", "makespan ms", "bound ms", "gap"]
    headers += ["vs single", "fits", "note"]
    cells = []
    for row in rows:
        cells.append(
            [
                str(row["graph"]),
                str(row["tasks"]),
                str(row["solver"]),
                _number(row["seconds"], "{:.3f}"),
                _number(row["peak_mb"], "{:.0f}"),
                _number(row["makespan"], "{:.3f}", 1e-6),
                _number(row["bound"], "{:.3f}", 1e-6),
                _number(row["gap"], "{:.2f} %", 100),
                _number(row["vs_best_single"], "{:.2f}x"),
                {True: "yes", False: "NO", None: "-"}[row["memory_ok"]],  # type: ignore[index]
                str(row["note"]).partition("\n")[0][:100],
            ]
        )
    return format_table(headers, cells, "<><>>>>>><<")


def place_rows(options: PlaceOptions, say: Say) -> list[Row]:
    """Run the solvers on the instances; [] if no instance matches. See the module for the keys.

    Raises
    ------
    SolverError
        A solver's name is unknown, or the budget or the seed is out of range.
    HeteroPlaceError
        An instance cannot be built.
    """
    names = options.solvers or tuple(SOLVERS)
    # Wrong options are told here, once, and not by every process.
    SolveOptions(time_limit_s=options.budget_s, seed=options.seed)
    for name in names:
        get_solver(name)
    rows: list[Row] = []
    for instance in select(options.only):
        facts = _facts(instance.name)
        found = []
        for solver in names:
            answer = _solve(instance.name, solver, options)
            say(f"{instance.name}: {solver}: {_summary(answer)}")
            found.append((solver, answer))
        rows += _finish(instance.name, facts, found)
    return rows


def _finish(graph: str, facts: Row, found: list[tuple[str, Row]]) -> list[Row]:
    """Put together the rows of one graph: the bound is the best of all."""
    bounds = [facts["bound"], *(answer["bound"] for _, answer in found)]
    bound = max(value for value in bounds if isinstance(value, int))
    single = facts["best_single"]
    rows = []
    for solver, answer in found:
        makespan = answer["makespan"]
        row: Row = {
            "graph": graph,
            "tasks": facts["tasks"],
            "cluster": facts["cluster"],
            "solver": solver,
            "seconds": answer["seconds"],
            "peak_mb": answer["peak_mb"],
            "makespan": makespan,
            "bound": bound,
            "gap": None,
            "vs_best_single": None,
            "memory_ok": answer["memory_ok"],
            "congestion": facts["congestion"],
            "cpu_seconds": answer["cpu_seconds"],
            "build_seconds": answer["build_seconds"],
            "note": answer["note"],
        }
        if isinstance(makespan, int):
            row["gap"] = round((makespan - bound) / makespan, 6) if makespan else 0.0
            if isinstance(single, int):
                row["vs_best_single"] = round(single / makespan, 4) if makespan else 1.0
        rows.append(row)
    return rows


def _facts(instance: str) -> Row:
    done = _worker([instance], None)
    if done.returncode != 0:
        raise HeteroPlaceError(f"instance {instance} cannot be built: {_last_words(done.stderr)}")
    facts: Row = json.loads(done.stdout.splitlines()[-1])
    return facts


def _solve(instance: str, solver: str, options: PlaceOptions) -> Row:
    """Run one solver in its own process; whatever happens to it becomes a note."""
    failed: Row = dict.fromkeys(
        ("seconds", "cpu_seconds", "build_seconds", "peak_mb", "makespan", "bound", "memory_ok")
    )
    limit = 10 * options.budget_s + _GRACE_S
    try:
        arguments = [instance, solver, str(options.budget_s), str(options.seed)]
        done = _worker(arguments, limit)
    except subprocess.TimeoutExpired:
        return failed | {"note": f"ended after {limit:.0f} s; the budget was {options.budget_s} s"}
    if done.returncode != 0:
        note = f"its process ended with {done.returncode}: {_last_words(done.stderr)}"
        return failed | {"note": note}
    answer: Row = json.loads(done.stdout.splitlines()[-1])
    return answer


def _worker(arguments: list[str], limit_s: float | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heteroplace.bench.place_worker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)


def _last_words(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])[-_NOTE_CHARACTERS:] or "no message"


def _summary(answer: Row) -> str:
    if answer["makespan"] is None:
        return str(answer["note"]).partition("\n")[0][:_NOTE_CHARACTERS]
    time = _number(answer["makespan"], "{:.3f} ms", 1e-6)
    fits = "" if answer["memory_ok"] else ", does not fit in memory"
    return f"{time} in {_number(answer['seconds'], '{:.3f} s')}{fits}"


def _number(value: object, form: str, factor: float = 1.0) -> str:
    return form.format(value * factor) if isinstance(value, int | float) else "-"
