"""Figures of a routed plan -> text: loads and padding of branches, where they are, bytes, hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from heteroplace.model.routed.routers import Router, RouterFigures
from heteroplace.model.units import format_bytes
from heteroplace.report.tables import MAX_ROWS, format_table


def routing_text(
    figures: Sequence[RouterFigures],
    copied: Mapping[tuple[str, str], float],
    assumption: str,
    max_rows: int = MAX_ROWS,
) -> str:
    """Return a row for each router, and a line for the bytes that go between memories.

    Parameters
    ----------
    copied
        Bytes of a run on average, by (source, destination).
    assumption
        Where loads come from, such as "of the profile routes.json".
    """
    body = []
    for row in figures[:max_rows]:
        where = Counter("+".join(names) or "-" for names in row.memories)
        body.append(
            [
                row.router.name,
                str(row.router.num_cells),
                str(row.router.num_branches),
                _capacities(row.router),
                f"{100 * row.padding_share:.0f} %",
                ", ".join(f"{name} ({count})" for name, count in sorted(where.items())),
                " ".join(f"{cells:.3g}" for cells in row.cells),
            ]
        )
    headers = ["router", "cells", "branches", "capacities", "padding", "memories", "mean loads"]
    text = format_table(headers, body, "<>><><<")
    if len(figures) > max_rows:
        text += f"\n... and {len(figures) - max_rows} more routers"
    return f"{text}\nloads {assumption}; bytes between memories in a run: {_ways(copied) or 'none'}"


def counted_text(copied: Mapping[tuple[str, str], int], hits: Mapping[str, tuple[int, int]]) -> str:
    """Return what an executor has counted.

    Parameters
    ----------
    copied
        Bytes so far, by (source, destination).
    hits
        Of each router (calls in which just the predicted branches were active, calls in which any
        were predicted).
    """
    lines = [f"copied between memories so far: {_ways(copied) or 'nothing'}"]
    lines += [
        f"router {name}: {exact} of {calls} predictions right ({100 * exact / calls:.1f} %)"
        for name, (exact, calls) in hits.items()
        if calls
    ]
    return "\n".join(lines)


def _ways(copied: Mapping[tuple[str, str], float]) -> str:
    return ", ".join(
        f"{source} -> {target} {format_bytes(round(size))}"
        for (source, target), size in sorted(copied.items())
    )


def _capacities(router: Router) -> str:
    """Those of all branches, or that they differ."""
    kinds = set(router.capacities)
    if len(kinds) > 1:
        return f"{len(kinds)} kinds"
    sizes = [str(size) for size in router.capacities[0]]
    return ",".join(sizes if len(sizes) <= 6 else [*sizes[:3], "..", sizes[-1]])
