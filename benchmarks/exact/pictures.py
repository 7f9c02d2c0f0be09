"""Rows of `benchmarks exact` -> the papers' figures: bars of Torchvision's networks and of Moirai's
speed-ups, and how good the best plan is until a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.exact.cases import COARSE, QUALITY, SPEED_UP_BASES, ZOO, ZOO_ITEMS
from benchmarks.plots import BarPanel, Panel, Series, plot_bars, plot_steps

Row = dict[str, object]
_ZOO_BARS = ("single", "heft", "sa", "divi", "split", "auto")
_ZOO_ITEM_BARS = ("single", "bheft", "sa", "divi", "split", "auto")
_OURS = "auto"
_BASE_NAMES = {"m-sct": "m-SCT", "getf": "GETF"}
_CLUSTERS = {"inter": "four servers", "intra": "one server"}
_GRAPHS = {"roomy": "original", "coarse": "coarse"}


def draw_zoo(path: Path, rows: Sequence[Row]) -> None:
    """Write DiviML's figure 3: simulated ms of each network and scheduler."""
    bars = _bars(rows, _ZOO_BARS, "makespan", 1e-6)
    panel = BarPanel("One image, simulated", _networks(rows), bars)
    plot_bars(path, [panel], "makespan (ms)")


def draw_zoo_items(path: Path, rows: Sequence[Row]) -> None:
    """Write its figure 5: simulated images per second of each network and scheduler."""
    bars = _bars(rows, _ZOO_ITEM_BARS, "items_per_second", 1.0)
    items = rows[0]["items"]
    panel = BarPanel(f"{items} images, simulated", _networks(rows), bars)
    plot_bars(path, [panel], "images per second", is_log=True)


def draw_quality(path: Path, rows: Sequence[Row]) -> None:
    """Write its figure 7: items per second of the best plan until a time, and the bound.

    A solver that tells of no plan before its last has one point.
    """
    panels = []
    for graph in dict.fromkeys(str(row["graph"]) for row in rows):
        own = [row for row in rows if row["graph"] == graph]
        curves = [Series(str(row["solver"]), _curve(row)) for row in own]
        bound = own[0]["bound_items_per_second"]
        limit = bound if isinstance(bound, float) else None
        panels.append(Panel(graph, tuple(one for one in curves if one.points), limit))
    plot_steps(path, panels, "measured seconds", "simulated items per second")


def draw_speed_ups(path: Path, rows: Sequence[Row]) -> None:
    """Write Moirai's bars: makespan of each baseline over that of `auto`, both clusters, original
    and coarse graphs."""
    panels = []
    ours = [row for row in rows if row["solver"] == _OURS]
    for graph, graph_name in _GRAPHS.items():
        for cluster, cluster_name in _CLUSTERS.items():
            own = [row for row in ours if _is_of(row, graph, cluster)]
            models = tuple(str(row["graph"]).split("/")[1] for row in own)
            bars = {
                _BASE_NAMES[base]: tuple(
                    _number(row[f"vs_{base.replace('-', '_')}"]) for row in own
                )
                for base in SPEED_UP_BASES
            }
            title = f"{cluster_name}, {graph_name} graphs"
            panels.append(BarPanel(title, models, bars, level=1.0))
    panels = [panel for panel in panels if panel.groups]
    plot_bars(path, panels, f"makespan over that of {_OURS}", is_log=True)


PICTURES: Mapping[str, Callable[[Path, Sequence[Row]], None]] = {
    ZOO: draw_zoo,
    ZOO_ITEMS: draw_zoo_items,
    QUALITY: draw_quality,
    COARSE: draw_speed_ups,
}
"""By table. Each raises HeteroPlaceError where there is nothing to draw."""


def _networks(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(row["graph"]).rpartition("/")[2] for row in rows))


def _bars(
    rows: Sequence[Row], solvers: Sequence[str], key: str, factor: float
) -> dict[str, tuple[float | None, ...]]:
    """Return the values of each solver in the order of the networks."""
    values = {(str(row["graph"]), str(row["solver"])): _number(row[key], factor) for row in rows}
    graphs = list(dict.fromkeys(graph for graph, _ in values))
    return {name: tuple(values.get((graph, name)) for graph in graphs) for name in solvers}


def _curve(row: Row) -> tuple[tuple[float, float], ...]:
    """Return (seconds, items per second) of the better plans, and of the last at the end."""
    incumbents, makespan = row["incumbents"], row["makespan"]
    items = int(str(row["items"])) * int(str(row["replicas"]))
    told = incumbents if isinstance(incumbents, list) else []
    points = [(float(seconds), items * 1e9 / ns) for seconds, ns in told]
    if isinstance(makespan, int):
        points.append((float(str(row["seconds"])), items * 1e9 / makespan))
    return tuple(points)


def _is_of(row: Row, graph: str, cluster: str) -> bool:
    name = str(row["graph"])
    return name.startswith(f"{graph}/") and name.endswith(f"/{cluster}")


def _number(value: object, factor: float = 1.0) -> float | None:
    return value * factor if isinstance(value, int | float) else None
