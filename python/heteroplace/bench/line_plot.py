"""Points -> one self-contained SVG with two logarithmic axes. No plotting package is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 130, 40, 60
_COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#8a6d1c", "#444444")


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), both > 0 to be shown; others are left out."""


@dataclass(frozen=True)
class _Axis:
    """Logarithmic, from a power of ten to a power of ten."""

    low: int
    high: int
    start: float
    """Pixel of 10**low."""
    end: float

    def pixel(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def log_log_svg(series: Sequence[Series], title: str, x_label: str, y_label: str) -> str:
    """Return the SVG text; a dashed line from the first point of each series shows linear growth.

    Raises
    ------
    ValueError
        No series has a point with both values > 0.
    """
    shown = [
        Series(line.name, tuple((x, y) for x, y in line.points if x > 0 and y > 0))
        for line in series
    ]
    shown = [line for line in shown if line.points]
    if not shown:
        raise ValueError("nothing to plot: no point has x > 0 and y > 0")
    x_axis = _axis([x for line in shown for x, _ in line.points], _LEFT, _WIDTH - _RIGHT)
    y_axis = _axis([y for line in shown for _, y in line.points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, "start", 15),
        *_grid(x_axis, y_axis),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 16, x_label),
        _text(20, _TOP - 8, y_label, "start"),
    ]
    for index, line in enumerate(shown):
        parts += _line(line, _COLORS[index % len(_COLORS)], index, x_axis, y_axis)
    return "\n".join([*parts, "</svg>", ""])


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    low = math.floor(math.log10(min(values)))
    return _Axis(low, max(low + 1, math.ceil(math.log10(max(values)))), start, end)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for power in range(x_axis.low, x_axis.high + 1):
        x = x_axis.pixel(10.0**power)
        parts.append(_segment(x, y_axis.start, x, y_axis.end, "#dddddd"))
        parts.append(_text(x, y_axis.start + 18, _tick(power)))
    for power in range(y_axis.low, y_axis.high + 1):
        y = y_axis.pixel(10.0**power)
        parts.append(_segment(x_axis.start, y, x_axis.end, y, "#dddddd"))
        parts.append(_text(x_axis.start - 8, y + 4, _tick(power), "end"))
    return parts


def _line(line: Series, color: str, index: int, x_axis: _Axis, y_axis: _Axis) -> list[str]:
    pixels = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    parts = [f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>']
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in pixels]
    # Linear growth from the first point, as far as the frame goes.
    (x, y), (last, _) = line.points[0], line.points[-1]
    end = min(last, x * 10.0**y_axis.high / y)
    parts.append(_segment(*pixels[0], x_axis.pixel(end), y_axis.pixel(y * end / x), color, "4 4"))
    legend = _TOP + 20 + 20 * index
    parts.append(_segment(_WIDTH - _RIGHT + 12, legend, _WIDTH - _RIGHT + 36, legend, color))
    parts.append(_text(_WIDTH - _RIGHT + 42, legend + 4, line.name, "start"))
    return parts


def _tick(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"


def _segment(x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "none") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-dasharray="{dashes}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
