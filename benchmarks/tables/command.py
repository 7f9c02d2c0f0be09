"""`benchmarks tables`: EXACT.md and PLACE.md, each table from one run, with a manifest.

What is measured is kept graph by graph (`store.py`): a run that is ended, by Ctrl-C or `--within`,
goes on where it was. A table is replaced when all its graphs are there; `manifest.json`, and at the
head of each document the same as a table, say commit, processor, seconds and load of each.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.plots import check_can_draw
from benchmarks.tables.parts import ALONE, DOCUMENTS, Part, all_parts
from benchmarks.tables.store import (
    Made,
    Measured,
    Stamp,
    Store,
    load_now,
    read_manifest,
    stamp_now,
    write_manifest,
)
from benchmarks.tables.write import manifest_table, marked, part_table, replace_marked
from heteroplace.errors import SolverError
from heteroplace.report.tables import format_table

Row = dict[str, object]
Say = Callable[[str], None]

BENCH = Path(__file__).resolve().parent.parent
"""Default folder of the documents."""
MANIFEST = "tables/manifest.json"
"""In the folder of the documents."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark; `--json` is that of all benchmarks."""
    parser.set_defaults(only=None)
    parser.add_argument(
        "--budget",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds per solver, in the two tables of all solvers 0.3 of them (default: 10)",
    )
    parser.add_argument(
        "--within",
        type=float,
        metavar="S",
        help="begin no graph after so many seconds; the next run goes on (default: no limit)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("build/tables"),
        help="where what is measured is kept (default: build/tables)",
    )
    parser.add_argument(
        "--documents",
        type=Path,
        default=BENCH,
        metavar="FOLDER",
        help=f"folder with {', '.join(f'{name}.md' for name in DOCUMENTS)} and {MANIFEST}, which "
        f"are updated (default: those of the package)",
    )
    parser.epilog = "REGEX is searched in PART/GRAPH. Without --only: all, which takes hours."


def run(arguments: argparse.Namespace, say: Say) -> list[Row]:
    """Measure what is not there, and write the tables that are whole; a row for each part."""
    if not arguments.budget > 0:
        raise SolverError(f"--budget must be > 0, got {arguments.budget}")
    _check_documents(arguments.documents)
    parts = all_parts()
    check_can_draw()
    store, stamp = Store(arguments.folder), stamp_now(arguments.budget)
    measure_missing(parts, store, stamp, arguments.only, arguments.within, say)
    return write_documents(parts, store, stamp, arguments.documents)


def _check_documents(folder: Path) -> None:
    """Raise SolverError, before anything is measured, if a document is missing."""
    names = (*(f"{name}.md" for name in DOCUMENTS), MANIFEST)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise SolverError(
            f"--documents: {folder} has no {', '.join(missing)}; copy them from {BENCH}, or leave "
            f"the option out"
        )


def table(rows: list[Row]) -> str:
    """Return the rows as text."""
    keys = ("part", "document", "graphs", "measured", "table")
    return format_table(keys, [[str(row[key]) for key in keys] for row in rows], "<<>><")


def measure_missing(
    parts: Sequence[Part],
    store: Store,
    stamp: Stamp,
    only: str | None,
    within_s: float | None,
    say: Say,
) -> None:
    """Measure each graph of each part that the store lacks with this stamp.

    Parameters
    ----------
    only
        Searched in PART/GRAPH; None: all of them.
    within_s
        Seconds after which no further graph is begun; None: no limit.
    """
    begin = time.perf_counter()
    for part in parts:
        own = stamp.of(part.budget_share)
        for graph in part.graphs:
            name = f"{part.name}/{graph}"
            if only is not None and not re.search(only, name):
                continue
            there = store.read(part.name, graph)
            if there is not None and there.stamp == own:
                continue
            if within_s is not None and time.perf_counter() - begin >= within_s:
                say(f"{name}: left for the next run, {within_s:g} s are over")
                return
            say(name)
            began = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
            start = time.perf_counter()
            rows = part.measure(graph, own.budget_s, say)
            seconds = round(time.perf_counter() - start, 1)
            store.write(part.name, graph, Measured(own, began, seconds, load_now(), rows))


def write_documents(parts: Sequence[Part], store: Store, stamp: Stamp, folder: Path) -> list[Row]:
    """Write the tables that are whole under this stamp, with their pictures, and the manifests of
    both documents.

    Returns
    -------
    list of dict
        For each part: part, document, graphs and measured (numbers of them), and table ("new",
        "of COMMIT", or "-": not by this command).
    """
    made = read_manifest(folder / MANIFEST)
    texts = {name: (folder / f"{name}.md").read_text() for name in DOCUMENTS}
    rows = []
    for part in parts:
        found = {}
        for graph in part.graphs:
            one = store.read(part.name, graph)
            if one is not None and one.stamp == stamp.of(part.budget_share):
                found[graph] = one
        is_new = 0 < len(found) == len(part.graphs)
        if is_new:
            made[part.name] = _made(part, found)
            if part.draw is not None:
                all_rows = [row for graph in part.graphs for row in found[graph].rows]
                part.draw(folder / part.picture_name, all_rows)
            text = replace_marked(texts[part.document], part.name, part_table(part, found))
            texts[part.document] = text
        entry = made.get(part.name)
        state = "new" if is_new else "-" if entry is None else f"of {entry.stamp.commit}"
        counts = {"graphs": len(part.graphs), "measured": len(found)}
        rows.append({"part": part.name, "document": part.document, **counts, "table": state})
    for name, text in texts.items():
        of_document = [part for part in parts if part.document == name]
        table = manifest_table(of_document, made, marked(text))
        (folder / f"{name}.md").write_text(replace_marked(text, "manifest", table))
    write_manifest(folder / MANIFEST, made)
    return rows


def _made(part: Part, found: dict[str, Measured]) -> Made:
    all_of_them = list(found.values())
    return Made(
        all_of_them[0].stamp,
        min(one.began for one in all_of_them),
        round(sum(one.seconds for one in all_of_them), 1),
        max(one.load for one in all_of_them),
        tuple(graph for graph in part.graphs if graph != ALONE),
        part.solvers,
    )
