"""Pictures of `benchmarks exact`: which rows become which bars and curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.command import main
from benchmarks.exact import pictures
from benchmarks.exact.cases import COARSE, QUALITY, TABLES, ZOO, ZOO_ITEMS
from benchmarks.plots import BarPanel, Panel


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """The panels of every picture."""
    found: list = []
    for name in ("plot_bars", "plot_steps"):
        monkeypatch.setattr(pictures, name, lambda _path, panels, *_, **__: found.extend(panels))
    return found


def row(graph: str, solver: str, **values: object) -> dict[str, object]:
    return {"graph": graph, "solver": solver, **values}


def test_every_picture_is_of_a_table() -> None:
    assert set(pictures.PICTURES) == {ZOO, ZOO_ITEMS, QUALITY, COARSE} <= set(TABLES)


def test_bars_are_milliseconds_of_each_network(drawn: list) -> None:
    rows = [row("zoo/a", "single", makespan=2_000_000), row("zoo/b", "single", makespan=None)]
    rows += [row("zoo/a", "auto", makespan=1_000_000), row("zoo/b", "auto", makespan=500_000)]
    pictures.draw_zoo(Path("x.svg"), rows)
    (panel,) = drawn
    assert isinstance(panel, BarPanel) and panel.groups == ("a", "b")
    assert panel.bars["single"] == (2.0, None) and panel.bars["auto"] == (1.0, 0.5)


def test_curves_end_with_the_plan_of_the_result(drawn: list) -> None:
    values = {"items": 4, "replicas": 1, "seconds": 3.0, "bound_items_per_second": 9.0}
    told = row("g", "auto", makespan=10**9, incumbents=[[0.5, 2 * 10**9]], **values)
    silent = row("g", "sa", makespan=None, incumbents=None, **values)
    pictures.draw_quality(Path("x.svg"), [told, silent])
    (panel,) = drawn
    assert isinstance(panel, Panel) and panel.limit == 9.0
    assert [(one.name, one.points) for one in panel.series] == [("auto", ((0.5, 2.0), (3.0, 4.0)))]


def test_speed_ups_have_a_panel_for_each_cluster_and_kind_of_graph(drawn: list) -> None:
    ups = {"vs_m_sct": 1.5, "vs_getf": None}
    names = ("roomy/m/inter", "roomy/m/intra", "coarse/m/inter")
    pictures.draw_speed_ups(Path("x.svg"), [row(name, "auto", **ups) for name in names])
    titles = [panel.title for panel in drawn]
    assert titles == [
        "four servers, original graphs",
        "one server, original graphs",
        "four servers, coarse graphs",
    ]
    assert drawn[0].bars == {"m-SCT": (1.5,), "GETF": (None,)}


@pytest.mark.parametrize("only", ["^divi-split/", "divi-(zoo|quality)/", "no such"])
def test_a_picture_is_of_one_table(only: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exact", "--only", only, "--plot", "x.svg"]) == 1
    assert "--plot draws one table, one of divi-zoo" in capsys.readouterr().err
