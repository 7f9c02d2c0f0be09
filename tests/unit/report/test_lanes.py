"""Lanes of a timeline, and how they are drawn: as SVG and by matplotlib."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from heteroplace.errors import MissingPackageError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan
from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Span, Timeline
from heteroplace.report.lanes import COMPUTES, MOVES, Bar, Lane, Lanes, timeline_lanes
from heteroplace.report.lanes_plot import lanes_figure
from heteroplace.report.lanes_svg import lanes_svg
from tests.instances import diamond
from tests.unit.questions.worked import diamond_solution

WIDTH, LABELS = 900, 140


@pytest.fixture
def solution(graph: TaskGraph, cluster: Cluster, plan: Plan) -> Solution:
    return Solution(graph, cluster, diamond().costs, plan, 4000, 0)


def rects(svg: str) -> list[tuple[float, float, str]]:
    """Return left end, width and text of each bar."""
    rectangles = []
    for each in ElementTree.fromstring(svg).iter():
        if each.tag.endswith("}rect"):
            left, width = float(each.attrib["x"]), float(each.attrib["width"])
            rectangles.append((left, width, str(each[0].text)))
    return rectangles


def test_lanes_are_in_the_order_of_the_cluster(predicted: Timeline, solution: Solution) -> None:
    lanes = timeline_lanes(predicted, "title", solution)
    assert [lane.name for lane in lanes.lanes] == ["cpu", "gpu", "h2d", "d2h"]
    assert [(bar.start_ns, bar.finish_ns) for bar in lanes.lanes[0].bars] == [
        (0, 1000),
        (1000, 3000),
    ]
    assert [bar.group for lane in lanes.lanes for bar in lane.bars] == [COMPUTES] * 3 + [MOVES] * 2
    assert "a" in lanes.lanes[0].bars[0].text
    assert lanes.end_ns == 4000


def test_a_timeline_alone_has_numbers_and_sorted_lanes(predicted: Timeline) -> None:
    lanes = timeline_lanes(predicted, "title")
    assert [lane.name for lane in lanes.lanes] == ["cpu", "d2h", "gpu", "h2d"]
    assert [bar.text for bar in lanes.lanes[0].bars] == ["step 0", "step 3"]


def test_bars_are_where_their_times_are(predicted: Timeline, solution: Solution) -> None:
    per_ns = (WIDTH - LABELS) / 4000
    svg = lanes_svg(timeline_lanes(predicted, "a & b", solution))
    spans = [(0, 1000), (1000, 3000), (3100, 3600), (1000, 3100), (3600, 4000)]
    expected = [(LABELS + start * per_ns, (end - start) * per_ns) for start, end in spans]
    assert [(left, width) for left, width, _ in rects(svg)] == [
        (pytest.approx(left, abs=0.06), pytest.approx(width, abs=0.06)) for left, width in expected
    ]
    assert "<title>a &amp; b</title>" in svg


def test_bars_within_a_pixel_are_drawn_as_one() -> None:
    bars = tuple(Bar(n, n + 1, f"s{n}", 0) for n in range(100_000))
    svg = lanes_svg(Lanes("many", (Lane("cpu", bars),)))
    drawn = rects(svg)
    assert WIDTH / 2 < len(drawn) <= WIDTH
    assert drawn[0][2].endswith("steps, 131 ns")
    assert sum(width for _, width, _ in drawn) == pytest.approx(WIDTH - LABELS, rel=0.1)


def test_bars_of_other_groups_are_not_joined() -> None:
    bars = (Bar(0, 1, "a", 0), Bar(1, 2, "b", 1), Bar(2, 10_000, "c", 0))
    assert [text for _, _, text in rects(lanes_svg(Lanes("", (Lane("cpu", bars),))))] == [
        "a, 1 ns",
        "b, 1 ns",
        "c, 10.00 us",
    ]


def test_without_any_time_there_is_no_picture() -> None:
    assert lanes_svg(timeline_lanes(Timeline((), "simulated"), "none")) == ""


def test_a_figure_has_a_row_for_each_lane(predicted: Timeline, solution: Solution) -> None:
    pytest.importorskip("matplotlib")
    figure = lanes_figure(timeline_lanes(predicted, "costs $5", solution))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cpu", "gpu", "h2d", "d2h"]
    assert axes.get_xlim() == (0, 0.004)
    assert axes.get_title() == r"costs \$5"
    cpu, gpu, *_ = (rows.get_paths() for rows in axes.collections)
    ends = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in cpu]
    assert ends == [(0, 0.001), (0.001, 0.003)]
    assert len(gpu) == 1
    figure.canvas.draw()


def test_solutions_and_timelines_draw_themselves() -> None:
    pytest.importorskip("matplotlib")
    solution = diamond_solution()
    (axes,) = solution.plot().axes
    assert axes.get_title() == "worked on gpus: 10 ns, simulated"
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["gpu0", "gpu1"]
    (axes,) = Timeline((Span(0, "cpu", 0, 5),), "measured", makespan_ns=5).plot().axes
    assert axes.get_title() == "5 ns, measured"


def test_without_matplotlib_a_plot_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="pip install matplotlib"):
        diamond_solution().plot()
