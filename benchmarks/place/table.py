"""Rows of `benchmarks place` -> a table, and where our own search is behind another solver."""

from __future__ import annotations

from collections.abc import Iterable

from heteroplace.model.units import format_gap
from heteroplace.report.tables import format_table

Row = dict[str, object]

OWN = ("search", "throughput")
"""Our own solvers: each should be at least as good as every other one in the table."""
_NOTE_CHARACTERS = 100


def place_table(rows: list[Row]) -> str:
    """Return the rows as text: makespans, or times per item where the rows have them."""
    is_item = is_for_items(rows)
    time, bound = ("item_ns", "item_bound") if is_item else ("makespan", "bound")
    headers = ["graph", "tasks", "solver", "wall s", "MB"]
    headers += (
        ["item ms", "bound ms", "ideals' DP ms", "items/s"]
        if is_item
        else ["makespan ms", "bound ms"]
    )
    headers += ["gap", "vs single", "fits", "note"]
    cells = []
    for row in rows:
        cell = [
            str(row["graph"]),
            str(row["tasks"]),
            str(row["solver"]),
            _number(row["seconds"], "{:.3f}"),
            _number(row["peak_mb"], "{:.0f}"),
            _number(row[time], "{:.3f}", 1e-6),
            _number(row[bound], "{:.3f}", 1e-6),
        ]
        if is_item:
            cell.append(_number(row["ideal_split_item"], "{:.3f}", 1e-6))
            cell.append(_number(row["items_per_second"], "{:.2f}"))
        cell += [
            _percent(row["item_gap" if is_item else "gap"]),
            _number(row["vs_best_single"], "{:.2f}x"),
            {True: "yes", False: "NO", None: "-"}[row["memory_ok"]],  # type: ignore[index]
            str(row["note"]).partition("\n")[0][:_NOTE_CHARACTERS],
        ]
        cells.append(cell)
    return format_table(headers, cells, "<><>>>>>>>><<" if is_item else "<><>>>>>><<")


def is_for_items(rows: Iterable[Row]) -> bool:
    """Whether the rows compare times per item and not makespans."""
    return any("item_ns" in row for row in rows)


def comparison(rows: list[Row]) -> str:
    """Return a sentence for each (graph, solver) with a valid plan shorter than that of our search.

    Also where our search is behind the best single device, or below the bound, which cannot be.
    "" if no solver of `OWN` for the objective is among the rows, or for several items: there is
    none of ours that makes plans for them.
    """
    if any(row["items"] != 1 for row in rows):
        return ""
    key, bound = ("item_ns", "item_bound") if is_for_items(rows) else ("makespan", "bound")
    own = OWN[1] if is_for_items(rows) else OWN[0]
    mine = {row["graph"]: row for row in rows if row["solver"] == own}
    if not mine:
        return ""
    faults: list[str] = []
    compared = 0
    for graph, row in mine.items():
        ours = row[key]
        for other in rows:
            theirs = other[key]
            if other["graph"] != graph or not isinstance(theirs, int) or not other["memory_ok"]:
                continue
            if isinstance(other[bound], int) and theirs < int(str(other[bound])):
                faults.append(
                    f"{graph}: {other['solver']} is below the bound: one of them is wrong"
                )
            if other is row:
                continue
            compared += 1
            if not isinstance(ours, int):
                faults.append(f"{graph}: {own} has no plan, {other['solver']} has")
            elif theirs < ours:
                lead = (ours - theirs) / ours
                faults.append(f"{graph}: {other['solver']} is {lead:.3%} shorter than {own}")
        single = row["vs_best_single"]
        if isinstance(single, int | float) and single < 1:
            faults.append(f"{graph}: {own} is behind the best single device")
    what = "plan" if compared == 1 else "plans"
    text = f"{own} against {compared} {what} on {len(mine)} graphs: "
    return text + "\n  ".join([f"{len(faults)} faults" if faults else "never behind", *faults])


def _number(value: object, form: str, factor: float = 1.0) -> str:
    return form.format(value * factor) if isinstance(value, int | float) else "-"


def _percent(gap: object) -> str:
    return format_gap(gap, 2) if isinstance(gap, int | float) else "-"
