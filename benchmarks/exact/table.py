"""Rows of `benchmarks exact` -> one text table for each table of the papers.

Headers say what a column is: "measured" on this machine, "simulated", or printed in the "paper".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.exact.cases import (
    COARSE,
    GPT3,
    MODULE_ITEMS,
    PUBLISHED,
    QUALITY,
    SPLIT,
    STEPS,
    TABLES,
    THROUGHPUT,
    ZOO_ITEMS,
)
from heteroplace.model.units import format_gap
from heteroplace.report.tables import format_table

Row = dict[str, object]
_NOTE_CHARACTERS = 60


@dataclass(frozen=True)
class _Column:
    header: str
    key: str
    form: str | Callable[[float], str]
    factor: float = 1.0


_PERCENT = partial(format_gap, digits=2)
_MEASURED_S = _Column("measured s", "seconds", "{:.2f}")
_BEST_S = _Column("measured s to best", "best_seconds", "{:.2f}")
_MAKESPAN = _Column("simulated ms", "makespan", "{:.3f}", 1e-6)
_BOUND = _Column("bound ms", "bound", "{:.3f}", 1e-6)
_GAP = _Column("gap", "gap", _PERCENT)
_VS_BOUND = _Column("over bound", "vs_bound", "{:.3f}x")
_RATE = (
    _Column("simulated items/s", "items_per_second", "{:.2f}"),
    _Column("bound items/s", "bound_items_per_second", "{:.2f}"),
    _Column("of bound", "of_bound", "{:.1%}"),
)
_SPEED_UPS = (
    _Column("over m-SCT", "vs_m_sct", "{:.2f}x"),
    _Column("over GETF", "vs_getf", "{:.2f}x"),
)
_ITEM = (
    _Column("simulated item ms", "item_ns", "{:.4f}", 1e-6),
    _Column("item bound ms", "item_bound", "{:.4f}", 1e-6),
    _Column("item gap", "item_gap", _PERCENT),
    _Column("simulated ideals' DP ms", "ideal_split_item", "{:.4f}", 1e-6),
)
_VS_PAPER = _Column("paper over ours", "vs_paper", "{:.3f}x")

_PAPER_FORMS = {
    "ms": "{} ms",
    "bound_ms": "bound {} ms",
    "vs_bound": "{}x bound",
    "seconds": "{} s",
    "split_speed_up": "split {}x faster",
    "items_per_second": "{}/s",
    "bound": "bound {}/s",
    "of_bound": "{:.1%}",
    "tasks": "{} ops",
    "what": "{}",
    "step": "{}",
    "best_vs_m-sct": "best {}x over m-SCT",
    "best_vs_getf": "best {}x over GETF",
}


def tables(rows: list[Row]) -> str:
    """Return all rows, each table under its name, in the order of the papers."""
    texts = []
    for name, title in TABLES.items():
        of_table = [row for row in rows if row["table"] == name]
        is_item = ["item_ns" in row for row in of_table]
        for kind in sorted(set(is_item)):
            part = [row for row, own in zip(of_table, is_item, strict=True) if own == kind]
            texts.append(f"{name}: {title}\n{_table(name, part, is_for_items=kind)}")
    return "\n\n".join(texts)


def paper_text(paper: object) -> str:
    """Return what a paper prints as one cell; "-" where it prints nothing."""
    if not isinstance(paper, dict):
        return "-"
    return ", ".join(_PAPER_FORMS[key].format(value) for key, value in paper.items())


def _table(name: str, rows: list[Row], *, is_for_items: bool) -> str:
    columns = _columns(name, is_for_items)
    headers = ["graph", "tasks", "solver", *(column.header for column in columns)]
    cells = []
    for row in rows:
        tasks = str(row["tasks"])
        before = row.get("original_tasks")
        if name == COARSE and isinstance(before, int) and before != row["tasks"]:
            tasks = f"{before} -> {tasks}"
        cell = [str(row["graph"]), tasks, str(row["solver"])]
        cell += [_cell(row, column) for column in columns]
        note = str(row["note"]).partition("\n")[0][:_NOTE_CHARACTERS]
        cells.append([*cell, paper_text(row["paper"]), note])
    align = "<><" + ">" * len(columns) + "<<"
    return format_table([*headers, "paper", "note"], cells, align)


def _columns(name: str, is_for_items: bool) -> tuple[_Column, ...]:
    if is_for_items:
        return (_MEASURED_S, *_ITEM, _VS_PAPER)
    if name == QUALITY:
        return (_MEASURED_S, _BEST_S, *_RATE)
    if name in (THROUGHPUT, MODULE_ITEMS, ZOO_ITEMS, GPT3):
        return (_MEASURED_S, *_RATE)
    if name == SPLIT:
        speed_up = _Column("measured split speed-up", "split_speed_up", "{:.1f}x")
        return (_MEASURED_S, _BEST_S, speed_up, _MAKESPAN, _BOUND, _GAP)
    if name == COARSE:
        return (_MEASURED_S, _MAKESPAN, _BOUND, _GAP, *_SPEED_UPS)
    if name == STEPS:
        return (_MEASURED_S, _BEST_S, _MAKESPAN, _BOUND, _GAP)
    if name == PUBLISHED:
        return (_MEASURED_S, _MAKESPAN, _BOUND, _GAP, _VS_PAPER)
    return (_MEASURED_S, _MAKESPAN, _BOUND, _VS_BOUND)


def _cell(row: Row, column: _Column) -> str:
    value = row.get(column.key)
    if not isinstance(value, int | float):
        return "-"
    number = value * column.factor
    return column.form.format(number) if isinstance(column.form, str) else column.form(number)
