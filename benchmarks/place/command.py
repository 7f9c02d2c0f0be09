"""`benchmarks place`: solvers against each other on the suites, in one table and one JSON.

Every (graph, solver) pair runs in a process of its own (`worker.py`), one after the other, or
`--jobs` at once, each on its share of the cores. A row has the keys

    graph, tasks, cluster, solver, seconds, peak_mb, makespan, bound, gap, vs_best_single, memory_ok

and congestion, budget_seconds, threads, items, cpu_seconds, best_seconds, incumbents ([seconds, ns]
of each better plan that the solver told of), build_seconds, note. Makespan and bound are in ns;
`seconds` is the wall time of the solve, `best_seconds` what of it had passed when the plan was
there (all of it for a solver that does not tell), and `peak_mb` the most memory of its process, in
10**6 bytes. `bound` is the best that any solver of the run has proven for the graph, gap =
(makespan - bound) / makespan. `vs_best_single` is the makespan of the best device on which
everything fits over that of the plan, so above 1 is faster; null where none fits. A solver that
refuses, fails or makes an invalid plan has makespan null, and `note` says why.

With `--objective throughput` a row also has item_ns, the time from one item to the next in a steady
state, items_per_second, item_bound and item_gap, and `vs_best_single` compares times per item;
`ideal_split_item` is that of the best contiguous split by dynamic programming over the ideals of
the graph, computed in the same run; null where there are too many.
Solvers that only know latency are asked for that, and their plans are judged by time per item.

With `--saga` list schedulers run beside those of another package (`saga.py`).

With `--items N` makespans are those of N items: plans of the batched solvers as they are, others
repeated N times in order of service.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ignored import refuse_ignored
from benchmarks.place.growth import growth_rows, growth_series, growth_table
from benchmarks.place.peers import peer_rows, peer_table
from benchmarks.place.processes import Processes
from benchmarks.place.saga import saga_rows, saga_table
from benchmarks.place.table import comparison, place_table
from benchmarks.plots import check_can_plot, plot_growth
from heteroplace.control_groups import usable_cores
from heteroplace.errors import SolverError
from heteroplace.solve import SOLVERS, get_solver
from heteroplace.solve.problem import OBJECTIVES, SolveOptions
from zoo.graphs.catalogue import QUICK, Instance, select

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

_LATENCY, _THROUGHPUT = OBJECTIVES
_ALONE = ("growth", "peers", "saga")
"""Kinds of runs that read no other options."""


@dataclass(frozen=True)
class PlaceOptions:
    """What is run."""

    only: str | None = None
    """Regular expression for instances; None: a small set of each family."""
    solvers: tuple[str, ...] = ()
    """Names of solvers; empty: all that apply, see `default_solvers`."""
    budget_s: float = 10.0
    """Time limit given to each solver, in seconds."""
    seed: int = 0
    objective: str = _LATENCY
    """One of OBJECTIVES."""
    items: int = 1
    """Served together; more than 1 only with the objective "latency"."""
    jobs: int = 1
    """Solvers that run at once."""

    @property
    def threads(self) -> int:
        """Threads of each solver: its share of the cores."""
        return max(1, usable_cores() // self.jobs)

    @property
    def worker_arguments(self) -> tuple[str, ...]:
        """What a solver's process is told (`worker.py`)."""
        told = {
            "budget": self.budget_s,
            "seed": self.seed,
            "objective": self.objective,
            "items": self.items,
            "threads": self.threads,
        }
        return tuple(f"--{name}={value}" for name, value in told.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; `--json` is that of all benchmarks."""
    parser.set_defaults(only=None)
    parser.add_argument(
        "--solvers",
        metavar="A,B",
        help="only these (default: all that apply)",
    )
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="S", help="seconds per solver (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the solvers")
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default=_LATENCY, help="(default: latency)"
    )
    parser.add_argument(
        "--items", type=int, default=1, metavar="N", help="items served together (default: 1)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="solvers that run at once, each on its share of the cores (default: 1)",
    )
    parser.add_argument(
        "--growth",
        action="store_true",
        help="time against size instead: 1,000 to 200,000 tasks; with --json FILE also FILE.svg",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="m-ETF and m-SCT against the same algorithms in plain Python instead",
    )
    parser.add_argument(
        "--saga",
        action="store_true",
        help="list schedulers against those of SAGA (anrg-saga) on its own generators instead",
    )
    parser.epilog = (
        f"Without --only: {', '.join(QUICK)}. All instances: --only . "
        f"Solvers: {', '.join(SOLVERS)}."
    )


def run(arguments: argparse.Namespace, say: Say) -> Iterable[Row]:
    """Run what the command line asks for; return the rows, graph by graph where there are many.

    Raises
    ------
    SolverError
        A solver's name is unknown, the budget or the seed is out of range, or an option is given
        that what is asked for does not read.
    """
    for kind in _ALONE:
        if getattr(arguments, kind):
            refuse_ignored(arguments, add_arguments, kind, ())
    if arguments.growth:
        return _growth(arguments.json, say)
    if arguments.peers:
        return peer_rows(say)
    if arguments.saga:
        return saga_rows(say)
    solvers = tuple(filter(None, (arguments.solvers or "").split(",")))
    options = PlaceOptions(
        only=arguments.only,
        solvers=solvers,
        budget_s=arguments.budget,
        seed=arguments.seed,
        objective=arguments.objective,
        items=arguments.items,
        jobs=arguments.jobs,
    )
    return place_rows(options, say)


def _growth(json_path: Path | None, say: Say) -> list[Row]:
    if json_path is None:
        return growth_rows(say)
    plot = json_path.with_suffix(".svg")
    check_can_plot(plot)
    rows = growth_rows(say)
    plot_growth(plot, growth_series(rows), "processor time (s)")
    say(f"plot: {plot}")
    return rows


def table(rows: list[Row]) -> str:
    """Return the rows of any mode as text."""
    if "ns_per_task" in rows[0]:
        return growth_table(rows)
    if "peer" in rows[0]:
        return peer_table(rows)
    if "saga_makespan" in rows[0]:
        return saga_table(rows)
    return "\n\n".join(filter(None, (place_table(rows), comparison(rows))))


def default_solvers(options: PlaceOptions) -> tuple[str, ...]:
    """Return all solvers, but those for several items or for throughput only where that is asked.

    Solvers that know only the latency of one item stay: their plans have a throughput too, and can
    be repeated. `auto` and `split` are for one item as well as for several.
    `list` is, without parts, `heft`.
    """
    return tuple(
        name
        for name in SOLVERS
        if not SOLVERS[name].takes_list_parts
        and (options.items > 1 or name in ("auto", "split") or not SOLVERS[name].takes_items)
        and (options.objective == _THROUGHPUT or _LATENCY in SOLVERS[name].objectives)
    )


def place_rows(
    options: PlaceOptions, say: Say, chosen: Sequence[Instance] | None = None
) -> Iterator[Row]:
    """Run the solvers on `chosen`, or on what `options.only` selects; yield the rows of each graph.

    See the module for the keys.

    Raises
    ------
    SolverError
        A solver's name is unknown, or the budget or the seed is out of range.
    HeteroPlaceError
        From the iterator: an instance cannot be built.
    """
    # Wrong options are told here, once, and not by every process.
    SolveOptions(time_limit_s=options.budget_s, seed=options.seed, items=options.items)
    if options.jobs < 1:
        raise SolverError(f"--jobs must be >= 1, got {options.jobs}")
    if options.items > 1 and options.objective == _THROUGHPUT:
        raise SolverError(
            f"--items {options.items} with --objective throughput: items follow each other there "
            f"one by one; leave out one of the two"
        )
    names = options.solvers or default_solvers(options)
    for name in names:
        get_solver(name)
    return _rows_of(select(options.only) if chosen is None else chosen, names, options, say)


def _rows_of(
    chosen: Sequence[Instance], names: Sequence[str], options: PlaceOptions, say: Say
) -> Iterator[Row]:
    for instance in chosen:
        processes = Processes(instance.name, options.worker_arguments, options.budget_s)
        reference = processes.reference()
        answers = processes.answers(names, options.jobs, say)
        found = list(zip(names, answers, strict=True))
        yield from _finish(instance.name, reference, found, options)


def _finish(
    graph: str, reference: Row, found: list[tuple[str, Row]], options: PlaceOptions
) -> list[Row]:
    """Put together the rows of one graph: the bound is the best of all."""
    answers = [answer for _, answer in found]
    bound = _best_bound("bound", reference, answers)
    rows = []
    for solver, answer in found:
        makespan = answer["makespan"]
        row: Row = {
            "graph": graph,
            "tasks": reference["tasks"],
            "cluster": reference["cluster"],
            "solver": solver,
            "seconds": answer["seconds"],
            "peak_mb": answer["peak_mb"],
            "makespan": makespan,
            "bound": bound,
            "gap": _gap(makespan, bound),
            "vs_best_single": _ratio(reference["best_single"], makespan),
            "memory_ok": answer["memory_ok"],
            "congestion": reference["congestion"],
            "budget_seconds": options.budget_s,
            "threads": options.threads,
            "items": options.items,
            "cpu_seconds": answer["cpu_seconds"],
            "best_seconds": answer["best_seconds"],
            "incumbents": answer["incumbents"],
            "build_seconds": answer["build_seconds"],
            "note": answer["note"],
        }
        if options.objective == _THROUGHPUT:
            item_ns, item_bound = answer["item_ns"], _best_bound("item_bound", reference, answers)
            row |= {
                "item_ns": item_ns,
                "items_per_second": _per_second(item_ns),
                "item_bound": item_bound,
                "item_gap": _gap(item_ns, item_bound),
                "ideal_split_item": reference["ideal_split_item"],
                "vs_best_single": _ratio(reference["best_single_item"], item_ns),
            }
        rows.append(row)
    return rows


def _best_bound(key: str, reference: Row, answers: list[Row]) -> int:
    bounds = [reference[key], *(answer[key] for answer in answers)]
    return max(value for value in bounds if isinstance(value, int))


def _gap(time_ns: object, bound_ns: int) -> float | None:
    if not isinstance(time_ns, int):
        return None
    gap = (time_ns - bound_ns) / time_ns if time_ns else 0.0
    return round(gap, 6) or gap  # 0 is a proof


def _ratio(single_ns: object, time_ns: object) -> float | None:
    if not isinstance(single_ns, int) or not isinstance(time_ns, int):
        return None
    return round(single_ns / time_ns, 4) if time_ns else 1.0


def _per_second(item_ns: object) -> float | None:
    return round(1e9 / item_ns, 6) if isinstance(item_ns, int) and item_ns else None
