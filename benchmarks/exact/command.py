"""`benchmarks exact`: the papers' tables with our solvers, and what the papers print beside them.

Rows are those of `benchmarks place` (see there) for each (graph, solver), with

    table           which table it belongs to; `exact_cases.TABLES` says what they are
    vs_bound        makespan over the best bound of the run
    items_per_second, bound_items_per_second, of_bound
                    where several items are served; with replicas, of all of them together
    split_speed_up  table "divi-split": seconds to the best plan over those of the solver split
    original_tasks, vs_m_sct, vs_getf
                    table "moirai-coarse": operators before coarsening; makespan of that baseline on
                    the same graph over this one, above 1 is faster
    vs_paper        table "published": the reference over this plan, above 1 is better
    paper           what the paper prints for this solver, on its machine: a dict, or null

`seconds`, `best_seconds` and `split_speed_up` are measured here; makespans, bounds and ratios of
them are simulated; `paper` is neither.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exact import fusion, orders, symmetry
from benchmarks.exact import table as exact_table
from benchmarks.exact.cases import (
    COARSE,
    PUBLISHED,
    SPEED_UP_BASES,
    SPLIT,
    SPLIT_SOLVER,
    TABLES,
    Case,
    all_cases,
)
from benchmarks.exact.pictures import PICTURES
from benchmarks.ignored import refuse_ignored
from benchmarks.place.command import PlaceOptions, Row, place_rows
from benchmarks.plots import check_can_plot
from heteroplace.errors import SolverError
from heteroplace.solve import SOLVERS
from heteroplace.solve.problem import SolveOptions
from heteroplace.written_files import WrittenFile
from zoo.graphs.catalogue import get_instance

Say = Callable[[str], None]


@dataclass(frozen=True)
class ExactOptions:
    """What is run."""

    only: str | None = None
    """Regular expression for TABLE/GRAPH; None: one or two small graphs of each table."""
    solvers: tuple[str, ...] = ()
    """Only these of each table; empty: all of them."""
    budget_s: float = 10.0
    """Time limit given to each solver, in seconds."""
    seed: int = 0
    jobs: int = 1
    """Solvers that run at once, as in `PlaceOptions`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; `--json` is that of all benchmarks."""
    parser.set_defaults(only=None)
    parser.add_argument("--solvers", metavar="A,B", help="only these (default: those of a table)")
    parser.add_argument(
        "--budget", type=float, default=10.0, metavar="S", help="seconds per solver (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the solvers")
    parser.add_argument(
        "--symmetry",
        action="store_true",
        help="what symmetry of equal devices and nodes saves, instead of the tables",
    )
    parser.add_argument(
        "--fusion",
        action="store_true",
        help="nodes and CCR of Celeritas' graphs before and after fusion, instead of the tables",
    )
    parser.add_argument(
        "--orders",
        action="store_true",
        help="step times of Celeritas' methods under other assumptions, instead of the tables; "
        f"REGEX is then searched in NETWORK/SETTING (default: {orders.DEFAULT})",
    )
    parser.add_argument(
        "--plot",
        action=WrittenFile,
        type=Path,
        metavar="FILE.svg",
        help=f"draw the picture of --orders, or of the table: one of {', '.join(PICTURES)}",
    )
    parser.epilog = (
        f"REGEX is searched in TABLE/GRAPH, e.g. '^divi-latency/.*sdep'. Tables: "
        f"{', '.join(TABLES)}. Without --only: some small graphs of each."
    )


def run(arguments: argparse.Namespace, say: Say) -> Iterable[Row]:
    """Run what the command line asks for; return the rows.

    Raises
    ------
    SolverError
        A solver's name is unknown, the budget or the seed is out of range, or `--plot` is asked for
        what has no picture.
    """
    kinds: dict[str, Callable[[Say], Iterable[Row]]] = {
        "symmetry": symmetry.symmetry_rows,
        "fusion": fusion.fusion_rows,
    }
    for kind, rows_of in kinds.items():
        if getattr(arguments, kind):
            refuse_ignored(arguments, add_arguments, kind)
            return rows_of(say)
    if arguments.orders:
        refuse_ignored(arguments, add_arguments, "orders", ("only", "plot"))
        if arguments.plot is None:
            return orders.order_rows(say, arguments.only)
        check_can_plot(arguments.plot)
        rows = orders.order_rows(say, arguments.only)
        return _drawn(rows, arguments.plot, orders.draw_orders, say)
    solvers = tuple(filter(None, (arguments.solvers or "").split(",")))
    options = ExactOptions(arguments.only, solvers, arguments.budget, arguments.seed)
    if arguments.plot is None:
        return exact_rows(options, say)
    draw = _picture_of(select_cases(options.only))
    check_can_plot(arguments.plot)
    return _drawn(exact_rows(options, say), arguments.plot, draw, say)


def _drawn(
    rows: Iterable[Row], path: Path, draw: Callable[[Path, Sequence[Row]], None], say: Say
) -> Iterator[Row]:
    """The rows; when all have come they are drawn."""
    found = []
    for row in rows:
        found.append(row)
        yield row
    draw(path, found)
    say(f"plot: {path}")


def _picture_of(cases: list[Case]) -> Callable[[Path, Sequence[Row]], None]:
    """Return what draws the one table that the cases are of."""
    chosen = {case.table for case in cases}
    if len(chosen) != 1 or not chosen <= set(PICTURES):
        raise SolverError(
            f"--plot draws one table, one of {', '.join(PICTURES)}; --only chooses: "
            f"{', '.join(sorted(chosen)) or 'none'}"
        )
    return PICTURES[chosen.pop()]


def table(rows: list[Row]) -> str:
    """Return the rows as text, table by table."""
    if rows and "order" in rows[0]:
        return symmetry.symmetry_table(rows)
    if rows and "fused_ccr" in rows[0]:
        return fusion.fusion_table(rows)
    if rows and "setting" in rows[0]:
        return orders.order_table(rows)
    return exact_table.tables(rows)


def exact_rows(options: ExactOptions, say: Say) -> Iterator[Row]:
    """Run the cases; yield the rows of each. See the module for the keys.

    Raises
    ------
    SolverError
        A solver's name is unknown, or the budget or the seed is out of range.
    HeteroPlaceError
        From the iterator: a graph cannot be built.
    """
    # Wrong options are told here, once, and not by every process.
    SolveOptions(time_limit_s=options.budget_s, seed=options.seed)
    cases = select_cases(options.only)
    _check_solvers(options.solvers, all_cases())
    missing = {name for case in cases for name in case.solvers if name not in SOLVERS}
    for name in sorted(missing):
        say(f"solver {name} is not registered: its rows are left out")
    return _with_original_tasks(_rows_of(cases, options, say))


def _rows_of(cases: Sequence[Case], options: ExactOptions, say: Say) -> Iterator[Row]:
    for case in cases:
        names = tuple(
            name
            for name in case.solvers
            if name in SOLVERS and (not options.solvers or name in options.solvers)
        )
        if names:
            yield from _case_rows(case, names, options, say)


def select_cases(only: str | None) -> list[Case]:
    """Return the cases whose TABLE/GRAPH matches the regular expression; None: the quick ones."""
    if only is None:
        return [case for case in all_cases() if case.is_quick]
    pattern = re.compile(only)
    return [case for case in all_cases() if pattern.search(case.name)]


def _check_solvers(names: Sequence[str], cases: list[Case]) -> None:
    known = sorted({name for case in cases for name in case.solvers})
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SolverError(
            f"--solvers: no table has {', '.join(unknown)}; in the tables are: {', '.join(known)}"
        )


def _case_rows(case: Case, names: tuple[str, ...], options: ExactOptions, say: Say) -> list[Row]:
    place = PlaceOptions(
        solvers=names,
        budget_s=options.budget_s,
        seed=options.seed,
        objective=case.objective,
        items=case.items,
        jobs=options.jobs,
    )
    instance = get_instance(case.instance)
    rows = list(place_rows(place, lambda line: say(f"{case.table}: {line}"), [instance]))
    by_solver = {str(row["solver"]): row for row in rows}
    return [{**row, **_extra(case, row, by_solver)} for row in rows]


def _extra(case: Case, row: Row, by_solver: dict[str, Row]) -> Row:
    """What a row has beyond those of `benchmarks place`."""
    makespan, bound = row["makespan"], row["bound"]
    extra: Row = {"table": case.table, "vs_bound": _over(makespan, bound)}
    if case.items > 1:
        items = case.items * case.replicas
        extra |= {
            "replicas": case.replicas,
            "items_per_second": _rate(items, makespan),
            "bound_items_per_second": _rate(items, bound),
            "of_bound": _over(bound, makespan),
        }
    if case.table == SPLIT:
        split = by_solver.get(SPLIT_SOLVER)
        own, other = row["best_seconds"], (split or {}).get("best_seconds")
        extra["split_speed_up"] = _over(own, other, 1)
    if case.table == COARSE:
        extra["original"] = case.original
        for base in SPEED_UP_BASES:
            other = by_solver.get(base, {}).get("makespan")
            extra[f"vs_{base.replace('-', '_')}"] = _over(other, makespan)
    paper = case.paper.get(str(row["solver"]))
    if case.table == PUBLISHED and paper is not None:
        ours = row.get("item_ns", makespan)
        reference_ns = float(paper["ms"]) * 1e6
        extra["vs_paper"] = _over(reference_ns, ours)
    return extra | {"paper": None if paper is None else dict(paper)}


def _with_original_tasks(rows: Iterable[Row]) -> Iterator[Row]:
    """Coarse rows learn the size of their original, where it is among the rows before them."""
    sizes: dict[object, object] = {}
    for row in rows:
        sizes[row["graph"]] = row["tasks"]
        if row["table"] == COARSE:
            row["original_tasks"] = sizes.get(row["original"])
        yield row


def _over(value: object, other: object, digits: int = 4) -> float | None:
    if not isinstance(value, int | float) or not isinstance(other, int | float) or other == 0:
        return None
    return round(value / other, digits)


def _rate(items: int, time_ns: object) -> float | None:
    return round(items * 1e9 / time_ns, 4) if isinstance(time_ns, int) and time_ns else None
