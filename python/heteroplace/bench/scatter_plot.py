"""Predicted against measured times -> one self-contained SVG.

Above: both times on equal logarithmic axes, with the diagonal and the band of +-10 %. Below: the
errors of the same points over the measured time, since a band of 10 % is thin where times span
decades. Each group has a colour and a marker of its own, so that it can be told apart in print.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heteroplace.bench.svg_axes import (
    COLORS,
    GUIDE,
    INK,
    Axis,
    LinearAxis,
    frame,
    page,
    segment,
    text,
)
from heteroplace.report.accuracy import error_ratios

BAND_RATIO = 0.1
"""Half of the band's width."""

_WIDTH, _HEIGHT = 800, 890
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 190, 60, 60
_SQUARE = _WIDTH - _LEFT - _RIGHT
_GAP = 70
"""Between the two panels."""
_LOWER_TOP = _TOP + _SQUARE + _GAP
_BAND = "#eef3f7"
_LEAST_ERROR_PERCENT = 20.0
"""The lower panel reaches at least so far."""
_MARGIN = 1.02
_STROKE = 'fill-opacity="0.35" stroke-width="1.2"'


@dataclass(frozen=True)
class PointGroup:
    """Points of one kind."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(measured, predicted), both > 0."""
    note: str = ""
    """A second line in the legend."""


def scatter_plot(groups: Sequence[PointGroup], title: str, unit: str) -> str:
    """Return the SVG text.

    Parameters
    ----------
    groups
        At least one point in all.
    title
    unit
        Of both values, e.g. "ms".

    Raises
    ------
    ValueError
        There is no point, or a value is not > 0.
    """
    points = [point for group in groups for point in group.points]
    if not points:
        raise ValueError("nothing to plot: there is no point")
    if min(map(min, points)) <= 0:
        raise ValueError(f"a value is {min(map(min, points))}: expected > 0")
    ends = [min(map(min, points)) / _MARGIN, max(map(max, points)) * _MARGIN]
    measured = Axis.around(ends, _LEFT, _LEFT + _SQUARE, least_ratio=2.0)
    predicted = Axis(measured.low, measured.high, _TOP + _SQUARE, _TOP)
    errors = error_ratios([y for _, y in points], [x for x, _ in points])
    widest = max(abs(error) for error in errors) * 100 * _MARGIN
    error_axis = LinearAxis(max(widest, _LEAST_ERROR_PERCENT), _HEIGHT - _BOTTOM, _LOWER_TOP)
    parts = [
        text(_LEFT, 30, title, "start", 15),
        *_diagonal(measured, predicted),
        *_error_guides(measured, error_axis),
        *frame(measured, predicted),
        *frame(measured, error_axis),
        text(_LEFT, _TOP - 10, f"predicted time ({unit})", "start"),
        text(_LEFT, _LOWER_TOP - 10, "error of the prediction (% of measured)", "start"),
        text(_LEFT + _SQUARE / 2, _HEIGHT - 18, f"measured time ({unit})"),
    ]
    for index, group in enumerate(groups):
        parts += _group(group, index, measured, predicted, error_axis)
    return page(_WIDTH, _HEIGHT, parts + _band_legend(len(groups)))


def _diagonal(x_axis: Axis, y_axis: Axis) -> list[str]:
    """The band and the diagonal, cut to the frame."""
    low, high, width = x_axis.low, x_axis.high, 1 + BAND_RATIO
    upper = [(low, low * width), (high / width, high)]
    lower = [(high, high * (1 - BAND_RATIO)), (low / (1 - BAND_RATIO), low)]
    corners = [(low, low), *upper, (high, high), *lower]
    path = " ".join(f"{x_axis.pixel(x):.1f},{y_axis.pixel(y):.1f}" for x, y in corners)
    return [
        f'<polygon points="{path}" fill="{_BAND}"/>',
        segment(x_axis.start, y_axis.start, x_axis.end, y_axis.end, INK, "4 4"),
    ]


def _error_guides(x_axis: Axis, y_axis: LinearAxis) -> list[str]:
    percent = 100 * BAND_RATIO
    top, bottom = y_axis.pixel(percent), y_axis.pixel(-percent)
    middle = y_axis.pixel(0)
    return [
        f'<rect x="{x_axis.start}" y="{top:.1f}" width="{x_axis.end - x_axis.start}" '
        f'height="{bottom - top:.1f}" fill="{_BAND}"/>',
        segment(x_axis.start, middle, x_axis.end, middle, INK, "4 4"),
    ]


def _group(
    group: PointGroup, index: int, x_axis: Axis, y_axis: Axis, error_axis: LinearAxis
) -> list[str]:
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    style = f'fill="{color}" stroke="{color}" {_STROKE}'
    parts = [f'<g class="points" {style}>']
    for x, y in group.points:
        parts.append(marker(x_axis.pixel(x), y_axis.pixel(y)))
        parts.append(marker(x_axis.pixel(x), error_axis.pixel(100 * (y - x) / x)))
    parts.append("</g>")
    left, top = _WIDTH - _RIGHT + 24, _TOP + 12 + 40 * index
    parts.append(f'<g class="legend" {style}>{marker(left, top)}</g>')
    parts.append(text(left + 14, top + 4, group.name, "start"))
    if group.note:
        parts.append(text(left + 14, top + 19, group.note, "start", 10))
    return parts


def _band_legend(num_groups: int) -> list[str]:
    left, top = _WIDTH - _RIGHT + 12, _TOP + 12 + 40 * num_groups
    percent = f"within {100 * BAND_RATIO:.0f} %"
    return [
        f'<rect x="{left}" y="{top - 6}" width="22" height="12" fill="{_BAND}" stroke="{GUIDE}"/>',
        text(left + 26, top + 4, percent, "start"),
        segment(left, top + 20, left + 22, top + 20, INK, "4 4"),
        text(left + 26, top + 24, "predicted = measured", "start"),
    ]


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float], str]:
    def draw(x: float, y: float) -> str:
        path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
        return f'<polygon points="{path}"/>'

    return draw


def _cross(x: float, y: float) -> str:
    arms = f"M{x - 3.5:.1f},{y - 3.5:.1f}l7,7m0,-7l-7,7"
    return f'<path d="{arms}"/>'


MARKERS: tuple[Callable[[float, float], str], ...] = (
    _circle,
    _polygon((-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)),
    _polygon((0, -4.2), (4, 3), (-4, 3)),
    _polygon((0, -4.6), (4.6, 0), (0, 4.6), (-4.6, 0)),
    _cross,
    _polygon((0, 4.2), (4, -3), (-4, -3)),
)
"""Each draws one point."""
