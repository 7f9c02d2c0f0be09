"""Plots: where points lie, what is labelled, what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.collections import PathCollection

from benchmarks import plots
from benchmarks.plots import (
    BarPanel,
    Panel,
    Series,
    check_can_plot,
    plot_bars,
    plot_growth,
    plot_predictions,
    plot_steps,
)
from heteroplace.errors import HeteroPlaceError

PAIR = (Series("a", ((1.0, 1.1), (2.0, 1.9))), Series("net<1>", ((100.0, 90.0),), "7 plans"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list:
    """The axes of every figure that is written."""
    found: list = []
    number_ticks = plots._number_ticks
    monkeypatch.setattr(
        plots, "_number_ticks", lambda axes: (found.append(axes), number_ticks(axes))
    )
    return found


def points(axes) -> list[list[tuple[float, float]]]:
    """The points of each group on some axes."""
    groups = [group for group in axes.collections if isinstance(group, PathCollection)]
    return [[tuple(map(float, point)) for point in group.get_offsets()] for group in groups]


def test_every_point_is_in_both_panels(drawn, tmp_path: Path) -> None:
    plot_predictions(tmp_path / "plot.svg", PAIR, "ms")
    above, below = drawn
    assert points(above) == [list(group.points) for group in PAIR]
    assert points(below)[0] == [(1.0, pytest.approx(10)), (2.0, pytest.approx(-5))]
    assert points(below)[1] == [(100.0, pytest.approx(-10))]


def test_all_points_are_inside_the_frames(drawn, tmp_path: Path) -> None:
    plot_predictions(tmp_path / "plot.png", [Series("a", ((0.001, 0.1), (5000.0, 1.0)))], "ms")
    for axes in drawn:
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for x, y in points(axes)[0]:
            assert left <= x <= right and bottom <= y <= top
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_plot_says_what_it_shows(drawn, tmp_path: Path) -> None:
    plot_predictions(tmp_path / "plot.svg", PAIR, "ms")
    above, below = drawn
    labels = [text.get_text() for text in above.get_legend().get_texts()]
    assert labels == ["within 10 %", "predicted = measured", "a", "net<1>\n7 plans"]
    assert above.get_ylabel() == "predicted time (ms)"
    assert below.get_xlabel() == "measured time (ms)"
    assert "% of measured" in below.get_ylabel()


def test_equal_points_give_equal_files(tmp_path: Path) -> None:
    texts = []
    for name in ("one.svg", "two.svg"):
        plot_predictions(tmp_path / name, PAIR, "ms")
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert ElementTree.fromstring(texts[0]).tag.endswith("svg")


def test_growth_has_a_colour_per_algorithm_and_dashes_per_family(drawn, tmp_path: Path) -> None:
    lines = [
        Series(name, ((1e3, 0.002), (2e5, 7.0), (0.0, 1.0))) for name in ("h, a", "h, b", "e, a")
    ]
    plot_growth(tmp_path / "plot.svg", lines, "processor time (s)")
    (axes,) = drawn
    shown = axes.lines[:3]
    assert [list(line.get_xdata()) for line in shown] == [[1e3, 2e5]] * 3
    assert shown[0].get_color() == shown[1].get_color() != shown[2].get_color()
    assert [line.get_linestyle() for line in shown] == ["-", "--", "-"]
    assert axes.get_ylabel() == "processor time (s)"


def test_bars_of_a_group_stand_side_by_side_and_none_has_no_bar(drawn, tmp_path: Path) -> None:
    left = BarPanel("left", ("a", "b"), {"x": (1.0, 2.0), "y": (3.0, None)}, level=1.0)
    plot_bars(tmp_path / "plot.svg", [left, BarPanel("right", ("c",), {"y": (4.0,)})], "ms")
    bars = [(round(bar.get_x(), 2), bar.get_height()) for bar in drawn[0].patches]
    assert bars == [(-0.38, 1.0), (0.62, 2.0), (0.02, 3.0)]
    assert [label.get_text() for label in drawn[0].get_xticklabels()] == ["a", "b"]
    assert [text.get_text() for text in drawn[1].get_legend().get_texts()] == ["x", "y"]
    assert [bar.get_height() for bar in drawn[1].patches] == [4.0]


def test_a_solver_has_one_look_in_all_panels_and_the_bound_is_a_line(drawn, tmp_path: Path) -> None:
    one, two = Series("one", ((1.0, 5.0), (2.0, 6.0))), Series("two", ((3.0, 4.0),))
    plot_steps(tmp_path / "plot.svg", [Panel("a", (one, two), 7.0), Panel("b", (two,))], "s", "1/s")
    first, second, bound = drawn[0].lines
    assert list(first.get_ydata()) == [5.0, 6.0] and first.get_drawstyle() == "steps-post"
    assert list(bound.get_ydata()) == [7.0, 7.0]
    assert drawn[1].lines[0].get_color() == second.get_color() != first.get_color()


def test_nothing_to_plot_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    with pytest.raises(HeteroPlaceError, match="nothing to plot"):
        plot_predictions(path, [Series("a", ())], "ms")
    with pytest.raises(HeteroPlaceError, match=r"a value is 0\.0: expected > 0"):
        plot_predictions(path, [Series("a", ((1.0, 0.0),))], "ms")
    with pytest.raises(HeteroPlaceError, match="nothing to plot"):
        plot_growth(path, [Series("empty", ((0.0, 1.0),))], "s")
    with pytest.raises(HeteroPlaceError, match="nothing to plot"):
        plot_bars(path, [BarPanel("", ("a",), {"x": (None,)})], "ms")
    with pytest.raises(HeteroPlaceError, match="nothing to plot"):
        plot_steps(path, [Panel("", ())], "s", "1/s")


def test_missing_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HeteroPlaceError, match=r"pip install 'heteroplace\[bench\]'"):
        check_can_plot(tmp_path / "plot.svg")
