"""`bench place --auto`: whether `auto` is behind any other solver, and who keeps the budget.

Every solver has the same budget and threads, in a process of its own, one after the other, as in
the other rows of `bench place`. A row has the keys

    graph, tasks, cluster, budget_seconds, auto, auto_seconds, best, best_solver, ratio, behind,
    late

`auto` and `best` are makespans in ns, or times from one item to the next where plans are made for
those, `best` that of the best other solver; a plan that is invalid or does not fit is none.
ratio = auto / best: at most 1 where `auto` is not behind. `behind` lists the solvers with shorter
plans. `late` gives for each solver that took more than LATE_RATIO beyond its budget, and LATE_S,
its seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heteroplace.report.tables import format_table

if TYPE_CHECKING:
    from heteroplace.bench.place.command import PlaceOptions

Row = dict[str, object]
Say = Callable[[str], None]
Solve = Callable[["PlaceOptions", Say], Iterable[Row]]

AUTO = "auto"
LATE_RATIO = 0.05
LATE_S = 0.1
"""What starting threads and building the first arrays may take, however short the budget."""


def auto_rows(
    options: PlaceOptions, names: Sequence[str], solve: Solve, say: Say = lambda _: None
) -> Iterator[Row]:
    """Run `auto` and the others, and compare; yield a row for each graph.

    Parameters
    ----------
    names
        Of the solvers; `auto` need not be among them.
    solve
        Runs all of `options.solvers` on what `options.only` selects, graph by graph: `place_rows`.
    """
    others = [name for name in names if name != AUTO]
    rows = iter(solve(replace(options, solvers=(*others, AUTO)), say))
    while of_graph := list(itertools.islice(rows, len(others) + 1)):
        yield compare(of_graph)


def compare(rows: Sequence[Row]) -> Row:
    """Return the row of one graph, from those of all solvers; `auto` is one of them."""
    auto = next(row for row in rows if row["solver"] == AUTO)
    key = "item_ns" if "item_ns" in auto else "makespan"
    valid = {
        str(row["solver"]): int(str(row[key]))
        for row in rows
        if row[key] is not None and row["memory_ok"]
    }
    found = valid.pop(AUTO, None)
    best = min(valid.values(), default=None)
    behind = [name for name, ns in valid.items() if found is None or ns < found]
    return {
        "graph": auto["graph"],
        "tasks": auto["tasks"],
        "cluster": auto["cluster"],
        "budget_seconds": auto["budget_seconds"],
        "auto": found,
        "auto_seconds": auto["seconds"],
        "best": best,
        "best_solver": next((name for name, ns in valid.items() if ns == best), None),
        "ratio": None if found is None or not best else round(found / best, 6),
        "behind": behind,
        "late": {str(row["solver"]): row["seconds"] for row in rows if _is_late(row)},
    }


def auto_table(rows: Sequence[Row]) -> str:
    """Return the rows as text, and a sentence that counts them."""
    headers = ["graph", "tasks", "auto ms", "auto s", "best other", "ms", "ratio", "late"]
    cells = [
        [
            str(row["graph"]),
            str(row["tasks"]),
            _ms(row["auto"]),
            str(row["auto_seconds"]),
            str(row["best_solver"] or "-"),
            _ms(row["best"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.6f}",
            ", ".join(f"{name} {seconds} s" for name, seconds in _items(row["late"])) or "-",
        ]
        for row in rows
    ]
    behind = [str(row["graph"]) for row in rows if row["behind"]]
    late = [str(row["graph"]) for row in rows if AUTO in dict(_items(row["late"]))]
    return "\n\n".join(
        (
            format_table(headers, cells, "<>>><>><"),
            f"auto is behind on {_counted(behind, len(rows))}, and late on "
            f"{_counted(late, len(rows))}",
        )
    )


def _is_late(row: Row) -> bool:
    if not isinstance(row["seconds"], float | int) or not isinstance(
        row["budget_seconds"], float | int
    ):
        return False
    return row["seconds"] > (1 + LATE_RATIO) * row["budget_seconds"] + LATE_S


def _items(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, dict) else ()


def _ms(value: object) -> str:
    return f"{value / 1e6:.3f}" if isinstance(value, int) else "-"


def _counted(names: Sequence[str], count: int) -> str:
    listed = f" ({', '.join(names)})" if names else ""
    return f"{len(names)} of {count} graphs{listed}"
