"""Scatter plots: where points lie, what is labelled, what is refused."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from heteroplace.bench.scatter_plot import MARKERS, PointGroup, scatter_plot
from heteroplace.bench.svg_axes import Axis, LinearAxis, tick

SVG = "{http://www.w3.org/2000/svg}"


def plot(*groups: PointGroup) -> ElementTree.Element:
    return ElementTree.fromstring(scatter_plot(groups, "a title", "ms"))


def circles(root: ElementTree.Element) -> list[tuple[float, float]]:
    """Centres of the points of the first group."""
    found = root.find(f"{SVG}g[@class='points']")
    assert found is not None
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in found.findall(f"{SVG}circle")]


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_every_point_is_in_both_panels() -> None:
    root = plot(PointGroup("a", ((1.0, 1.1), (2.0, 1.9))), PointGroup("b", ((100.0, 90.0),)))
    groups = root.findall(f"{SVG}g[@class='points']")
    assert [len(list(group)) for group in groups] == [4, 2]


def test_perfect_prediction_lies_on_the_diagonal_and_has_no_error() -> None:
    (upper, lower), (_, zero) = (circles(plot(PointGroup("a", ((x, x),)))) for x in (5.0, 7.0))
    left, bottom = 90, 580
    assert upper[0] - left == pytest.approx(bottom - upper[1], abs=0.2)
    assert lower[0] == upper[0]
    assert lower[1] == pytest.approx(zero[1])


def test_too_short_prediction_lies_below() -> None:
    points = circles(plot(PointGroup("a", ((10.0, 10.0), (10.0, 8.0), (10.0, 12.0)))))
    exact, short, long = points[0::2]
    assert short[1] > exact[1] > long[1]
    exact, short, long = points[1::2]
    assert short[1] > exact[1] > long[1]
    assert short[1] - exact[1] == pytest.approx(exact[1] - long[1], abs=0.2)


def test_all_points_are_inside_the_frames() -> None:
    root = plot(PointGroup("a", ((0.001, 0.1), (5000.0, 1.0))))
    frames = [rect.attrib for rect in root.iter(f"{SVG}rect") if rect.attrib.get("fill") == "none"]
    upper, lower = (
        (float(box["y"]), float(box["y"]) + float(box["height"]), float(box["x"])) for box in frames
    )
    for index, (x, y) in enumerate(circles(root)):
        top, bottom, left = lower if index % 2 else upper
        assert top <= y <= bottom
        assert left <= x <= left + float(frames[0]["width"])


def test_plot_says_what_it_shows() -> None:
    words = texts(plot(PointGroup("net<1>", ((1.0, 1.0),), "7 plans")))
    for expected in (
        "a title",
        "net<1>",
        "7 plans",
        "predicted time (ms)",
        "measured time (ms)",
        "error of the prediction (% of measured)",
        "within 10 %",
    ):
        assert expected in words


def test_groups_differ_in_colour_and_marker() -> None:
    root = plot(*(PointGroup(f"g{index}", ((1.0, 1.0),)) for index in range(len(MARKERS))))
    groups = root.findall(f"{SVG}g[@class='points']")
    assert len({group.attrib["fill"] for group in groups}) == len(MARKERS)
    first = [ElementTree.tostring(next(iter(group))) for group in groups]
    assert len(set(first)) == len(MARKERS)


def test_nothing_to_plot_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to plot"):
        scatter_plot([PointGroup("a", ())], "t", "ms")
    with pytest.raises(ValueError, match=r"a value is 0\.0: expected > 0"):
        scatter_plot([PointGroup("a", ((1.0, 0.0),))], "t", "ms")


def test_ticks_of_an_error_axis_are_round_and_symmetric() -> None:
    assert LinearAxis(20.0, 0, 1).ticks() == [-20, -15, -10, -5, 0, 5, 10, 15, 20]
    assert LinearAxis(97.0, 0, 1).ticks() == [-50, 0, 50]
    assert [tick(value) for value in (-5.0, 0.0, 0.5, 2000.0)] == ["-5", "0", "0.5", "2,000"]


def test_axis_reaches_from_round_to_round() -> None:
    axis = Axis.around([3.0, 41.0], 0, 100, least_ratio=2.0)
    assert (axis.low, axis.high) == (2.0, 50.0)
    assert axis.ticks() == [2.0, 5.0, 10.0, 20.0, 50.0]
    assert (axis.pixel(2.0), axis.pixel(50.0)) == (0, 100)
