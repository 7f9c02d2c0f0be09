"""Points -> one self-contained SVG with two logarithmic axes. No plotting package is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.bench.svg_axes import COLORS, GUIDE, Axis, frame, page, segment, text

_WIDTH, _HEIGHT = 820, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 210, 60, 60


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), both > 0 to be shown; others are left out."""
    kind: str = ""
    """Lines of one kind have one colour; of the second line of a kind the points are hollow and the
    line is dashed. "" is a kind for each line."""


def log_log_svg(series: Sequence[Series], title: str, x_label: str, y_label: str) -> str:
    """Return the SVG text. Grey diagonals show linear growth.

    Raises
    ------
    ValueError
        No series has a point with both values > 0.
    """
    shown = [
        Series(line.name, tuple((x, y) for x, y in line.points if x > 0 and y > 0), line.kind)
        for line in series
    ]
    shown = [line for line in shown if line.points]
    if not shown:
        raise ValueError("nothing to plot: no point has x > 0 and y > 0")
    x_axis = Axis.around([x for line in shown for x, _ in line.points], _LEFT, _WIDTH - _RIGHT)
    y_axis = Axis.around([y for line in shown for _, y in line.points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        text(_LEFT, 24, title, "start", 15),
        *_guides(x_axis, y_axis),
        *frame(x_axis, y_axis),
        text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 16, x_label),
        text(_LEFT, _TOP - 14, y_label, "end"),
    ]
    kinds: list[str] = []
    for index, line in enumerate(shown):
        kinds.append(line.kind or f"line {index}")
        color = COLORS[list(dict.fromkeys(kinds)).index(kinds[-1]) % len(COLORS)]
        parts += _line(line, color, kinds.count(kinds[-1]) > 1, index, x_axis, y_axis)
    legend = _TOP + 20 + 22 * len(shown)
    parts.append(segment(_WIDTH - _RIGHT + 12, legend, _WIDTH - _RIGHT + 40, legend, "#aaaaaa"))
    parts.append(text(_WIDTH - _RIGHT + 48, legend + 4, "linear growth", "start"))
    return page(_WIDTH, _HEIGHT, parts)


def _guides(x_axis: Axis, y_axis: Axis) -> list[str]:
    """Lines y = c * x through the frame, c the powers of ten."""
    slopes = (y_axis.low / x_axis.high, y_axis.high / x_axis.low)
    powers = range(math.ceil(math.log10(slopes[0])), math.floor(math.log10(slopes[1])) + 1)
    parts = []
    for slope in (10.0**power for power in powers):
        begin = max(x_axis.low, y_axis.low / slope)
        end = min(x_axis.high, y_axis.high / slope)
        if begin < end:
            xs = x_axis.pixel(begin), x_axis.pixel(end)
            ys = y_axis.pixel(slope * begin), y_axis.pixel(slope * end)
            parts.append(segment(xs[0], ys[0], xs[1], ys[1], GUIDE))
    return parts


def _line(
    line: Series, color: str, is_second: bool, index: int, x_axis: Axis, y_axis: Axis
) -> list[str]:
    pixels = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    dashes, fill = ("5 4", "white") if is_second else ("none", color)
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" '
        f'stroke-dasharray="{dashes}"/>'
    ]
    parts += [_dot(x, y, color, fill) for x, y in pixels]
    legend = _TOP + 12 + 22 * index
    left = _WIDTH - _RIGHT + 12
    parts.append(segment(left, legend, left + 28, legend, color, dashes, 2))
    # An ellipse, so that every circle of the picture is a point of a line.
    parts.append(
        f'<ellipse cx="{left + 14}" cy="{legend}" rx="3" ry="3" fill="{fill}" stroke="{color}"/>'
    )
    parts.append(text(left + 36, legend + 4, line.name, "start"))
    return parts


def _dot(x: float, y: float, color: str, fill: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{color}"/>'
