"""Measured rows -> the tables between the marks of EXACT.md and PLACE.md, and their manifest.

A document keeps what stands outside of its marks. A part whose graphs are all measured replaces
what stands between its marks; of another part the old table stays, and the manifest says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.exact.cases import COARSE, LATENCY, MODULE, PUBLISHED, SPLIT, STEPS, ZOO
from benchmarks.tables import parts as of_parts
from benchmarks.tables.parts import Part
from benchmarks.tables.store import Made, Measured

UNFIT = "*"
"""Behind the time of a plan that does not fit in memory."""
OLDER, NOT_YET = "an older run, not by `make tables`", "not run yet"
_MARKED = re.compile(r"<!-- (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)

Row = dict[str, object]
_BY_RATIO = ("vs_bound", "{:.3f}", 1.0, "vs_bound")
_BY_SHARE = ("of_bound", "{:.1%}", 1.0, "of_bound")
_VALUES: Mapping[str, tuple[str, str, float, str]] = {
    LATENCY: _BY_RATIO,
    MODULE: _BY_RATIO,
    ZOO: ("makespan", "{:,.3f}", 1e-6, "ms"),
    SPLIT: ("best_seconds", "{:.2f} s", 1.0, "seconds"),
    COARSE: ("makespan", "{:,.3f}", 1e-6, ""),
    PUBLISHED: ("makespan", "{:,.3f}", 1e-6, "ms"),
    STEPS: ("makespan", "{:,.3f}", 1e-6, "ms"),
    of_parts.LATENCY: ("makespan", "{:,.3f}", 1e-6, ""),
    of_parts.THROUGHPUT: ("item_ns", "{:,.3f}", 1e-6, ""),
}
"""For each part the key of a cell, its form, its factor, and the key of the paper's number; of
others the share of the bound."""


def part_table(part: Part, found: Mapping[str, Measured]) -> str:
    """Return a table in Markdown: a row for each graph, a column for each solver."""
    if not part.solvers:
        rows = found[of_parts.ALONE].rows
        return _growth_table(rows) if part.name == of_parts.GROWTH else _plain_table(rows)
    paper = ["paper ms"] if part.name == PUBLISHED else []
    headers = ["graph", "tasks", "bound ms", *paper, *part.solvers]
    lines = [[graph, *_graph_cells(part, found[graph].rows)] for graph in part.graphs]
    picture = f"\n\n![{part.title}]({part.picture_name})" if part.draw is not None else ""
    return _markdown(headers, lines) + picture


def manifest_table(
    parts: Sequence[Part], made: Mapping[str, Made], standing: Mapping[str, str]
) -> str:
    """Return who made which part when, as a table in Markdown.

    Parameters
    ----------
    standing
        What stands between the marks of the document (`marked`).
    """
    headers = ["part", "what", "commit", "processor", "cores", "budget s", "began", "seconds"]
    lines = []
    for part in parts:
        one = made.get(part.name)
        other = OLDER if standing.get(part.name, "").strip() else NOT_YET
        cells = [other, *["-"] * 5] if one is None else _made_cells(one)
        lines.append([f"`{part.name}`", part.title, *cells])
    return _markdown(headers, lines)


def replace_marked(text: str, name: str, table: str) -> str:
    """Return the document with this between the marks of `name`; KeyError if it has none."""
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    start = text.index(begin) + len(begin) if begin in text else -1
    if start < 0:
        raise KeyError(name)
    return f"{text[:start]}{table}\n{text[text.index(end, start) :]}"


def marked(text: str) -> dict[str, str]:
    """Return what stands between the marks of a document, by name."""
    return {name: inner for name, inner in _MARKED.findall(text)}


def _paper(rows: Sequence[Row], key: str) -> str:
    """What the paper prints of a graph."""
    papers = (row.get("paper") for row in rows)
    return next((str(paper[key]) for paper in papers if isinstance(paper, dict)), "-")


def _graph_cells(part: Part, rows: Sequence[Row]) -> list[str]:
    key, form, factor, paper_key = _VALUES.get(part.name, _BY_SHARE)
    of_solver = {row["solver"]: row for row in rows}
    is_item = "item_ns" in rows[0]
    cells = [f"{rows[0]['tasks']:,}", _number(rows[0]["item_bound" if is_item else "bound"])]
    if part.name == PUBLISHED:  # of each file one number, whoever solves it
        cells.append(_paper(rows, paper_key))
        paper_key = ""
    for solver in part.solvers:
        row = of_solver.get(solver)
        value = None if row is None else row.get("item_ns" if is_item else key)
        cell = form.format(value * factor) if isinstance(value, int | float) else "-"
        if row is not None and cell != "-" and row.get("memory_ok") is False:
            cell += UNFIT
        paper = None if row is None else row.get("paper")
        if part.name == SPLIT and row is not None and cell != "-":
            cell += f" at {row['vs_bound']:.3f}"
        printed = paper.get(paper_key) if isinstance(paper, dict) else None
        if isinstance(printed, int | float):
            cell += f" ({form.format(printed) if factor == 1.0 else printed})"
        cells.append(cell)
    return cells


def _number(value: object) -> str:
    return f"{value * 1e-6:,.3f}" if isinstance(value, int | float) else "-"


def _made_cells(made: Made) -> list[str]:
    stamp = made.stamp
    disturbed = f"{made.seconds:,.0f} (load {made.load})"
    budget = f"{stamp.budget_s:g}"
    return [stamp.commit, stamp.processor, str(stamp.cores), budget, made.began, disturbed]


def _growth_table(rows: Sequence[Row]) -> str:
    """A row for each algorithm on each family, a column for each size."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        seconds, size = row["cpu_seconds"], round(int(str(row["tasks"])), -3)
        assert isinstance(seconds, float)
        is_step = row["what"] == "search"
        what = f"{row['what']}, ns of an evaluation" if is_step else str(row["what"])
        cell = f"{seconds * 1e9 if is_step else row['ns_per_task']:,.0f}"
        found.setdefault((str(row["family"]), what), {})[size] = cell
    sizes = sorted({size for cells in found.values() for size in cells})
    headers = ["family", "what", *(f"{size:,} tasks" for size in sizes)]
    return _markdown(
        headers, [[*key, *(cells.get(size, "-") for size in sizes)] for key, cells in found.items()]
    )


def _plain_table(rows: Sequence[Row]) -> str:
    headers = list(rows[0])
    return _markdown(headers, [[_cell(row[key]) for key in headers] for row in rows])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _markdown(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headers, ["---"] * len(headers), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
