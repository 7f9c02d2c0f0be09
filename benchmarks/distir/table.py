"""Grids and comparisons of `benchmarks distir` -> text tables, and the points of its picture.

Headers say what a column is: "measured" here, "simulated" on the modelled machine, or printed in
the "paper".
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.distir.grids import Comparison, Grid
from benchmarks.distir.published import MODELS, NUM_DEVICES
from benchmarks.plots import Series
from heteroplace.parts.parallel.transforms.search_rows import SearchRow, pareto_front, pure
from heteroplace.report.tables import format_table

_MAX_BATCHES = 4


def grid_table(grids: Sequence[Grid], comparisons: Sequence[Comparison]) -> str:
    """Return the tables of all grids, and of all published bests among their batches."""
    parts = [_grids(grids)]
    if comparisons:
        parts.append(_bests(grids, comparisons))
        parts.append(_summary(comparisons))
    parts.append(_correlations())
    return "\n\n".join(parts)


def _grids(grids: Sequence[Grid]) -> str:
    headers = ["model", "configurations", "paper", "fit", "measured s", "paper min, 56 cores"]
    cells = []
    for grid in grids:
        fitting = sum(row.fits for row in grid.rows)
        minutes = grid.model.simulated_minutes
        cells.append(
            [
                grid.model.name,
                str(len(grid.rows)),
                f"{grid.model.grid}{' a batch' if grid.model.is_training else ''}",
                str(fitting),
                f"{grid.seconds:.1f}",
                str(minutes) if minutes else "< 1",
            ]
        )
    return format_table(headers, cells, "<>>>>>")


def _bests(grids: Sequence[Grid], comparisons: Sequence[Comparison]) -> str:
    headers = ["model", "batch", "paper", "simulated", "place", "time over best"]
    headers += ["over D", "paper", "over T", "paper", "over P", "paper"]
    rows_of = {grid.model.name: grid.rows for grid in grids}
    cells = []
    for each in comparisons:
        published = each.published
        batch = [row for row in rows_of[published.model] if row.batch == published.batch]
        cells.append(
            [
                published.model,
                str(published.batch),
                str(published.degrees),
                "none fits" if each.best is None else str(each.best.degrees),
                "does not fit" if each.place is None else str(each.place),
                "-" if each.over_best is None else f"{each.over_best:.3f}",
                *_over_pure(each.best, batch, published.over_data, "data"),
                *_over_pure(each.best, batch, published.over_tensor, "tensor"),
                *_over_pure(each.best, batch, published.over_pipeline, "pipeline"),
            ]
        )
    return format_table(headers, cells, "<><<>>" + ">" * 6)


def _over_pure(
    best: SearchRow | None, rows: Sequence[SearchRow], printed: float | None, name: str
) -> tuple[str, str]:
    other = pure(rows)[name]
    ours = "-"
    if best is not None and other is not None:
        ours = f"{best.items_per_second / other.items_per_second:.1f}"
    return ours, "-" if printed is None else f"{printed:.1f}"


def _summary(comparisons: Sequence[Comparison]) -> str:
    places = [each.place for each in comparisons]
    ratios = [each.over_best for each in comparisons if each.over_best is not None]
    first, second = places.count(1), sum(place in (1, 2) for place in places)
    worst = max(ratios, default=1.0)
    return (
        f"The paper's D/T/P is our first in {first} of {len(places)} rows, among our first two in "
        f"{second}, and does not fit in {places.count(None)}; its simulated time is at most "
        f"{worst:.3f} of our best"
    )


def _correlations() -> str:
    rows = [[model.name, str(model.configurations), f"{model.spearman:.2f}"] for model in MODELS]
    table = format_table(["model", "configurations", "Spearman"], rows, "<>>")
    return f"From the paper (simulated against real throughput, {NUM_DEVICES} V100)\n{table}"


def row_table(rows: Sequence[dict[str, object]]) -> str:
    """Return one line for each model: rows, batches, median bubble and communication."""
    headers = ["model", "mode", "rows", "batches", "bubble", "communication"]
    cells = []
    for name in dict.fromkeys(str(row["model"]) for row in rows):
        chosen = [row for row in rows if row["model"] == name]
        known = [row for row in chosen if row["simulated_ms"] is not None]
        batches = list(dict.fromkeys(str(row["batch"]) for row in chosen))
        more = ", ..." if len(batches) > _MAX_BATCHES else ""
        cells.append(
            [
                name,
                str(chosen[0]["mode"]),
                str(len(chosen)),
                ", ".join(batches[:_MAX_BATCHES]) + more,
                *(
                    f"{median(float(str(row[key])) for row in known):.0%}" if known else "-"
                    for key in ("bubble", "communication")
                ),
            ]
        )
    return f"Simulated, medians over the rows\n{format_table(headers, cells, '<<><>>')}"


def growth_table(rows: Sequence[dict[str, object]]) -> str:
    """Return one line for each number of layers; linear growth is equal microseconds per task."""
    headers = ["model", "layers", "tasks", "measured processor s", "us per task"]
    cells = []
    for row in rows:
        seconds, tasks = float(str(row["seconds"])), int(str(row["tasks"]))
        cells.append(
            [
                *(str(row[key]) for key in ("model", "layers", "tasks")),
                f"{seconds:.2f}",
                f"{seconds / tasks * 1e6:.0f}",
            ]
        )
    return format_table(headers, cells, "<>>>>")


def fronts(grids: Sequence[Grid]) -> list[Series]:
    """Return (peak GiB, rows per second) of the front of each model, of its largest batch."""
    found = []
    for grid in grids:
        batch = max(row.batch for row in grid.rows)
        front = pareto_front(row for row in grid.rows if row.batch == batch)
        points = tuple((row.peak_bytes / 2**30, row.items_per_second) for row in front)
        found.append(Series(grid.model.name, points, f"batch {batch}"))
    return [series for series in found if series.points]
