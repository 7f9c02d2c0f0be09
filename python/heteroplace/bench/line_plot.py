"""Points -> one self-contained SVG with two logarithmic axes. No plotting package is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 820, 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 210, 60, 60
_COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#8a6d1c", "#444444")
_GUIDE = "#cccccc"
_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), both > 0 to be shown; others are left out."""
    kind: str = ""
    """Lines of one kind have one colour; of the second line of a kind the points are hollow and the
    line is dashed. "" is a kind for each line."""


@dataclass(frozen=True)
class _Axis:
    """Logarithmic."""

    low: float
    high: float
    start: float
    """Pixel of `low`."""
    end: float

    def pixel(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; only the powers if there are more than three."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = _STEPS[:1] if self.high / self.low > 1e3 else _STEPS[:3]
        values = [step * 10.0**power for power in powers for step in steps]
        slack = 1 + 1e-9
        return [value for value in values if self.low / slack <= value <= self.high * slack]


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
    x_axis = _axis([x for line in shown for x, _ in line.points], _LEFT, _WIDTH - _RIGHT)
    y_axis = _axis([y for line in shown for _, y in line.points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, "start", 15),
        *_guides(x_axis, y_axis),
        *_grid(x_axis, y_axis),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 16, x_label),
        _text(_LEFT, _TOP - 14, y_label, "end"),
    ]
    kinds: list[str] = []
    for index, line in enumerate(shown):
        kinds.append(line.kind or f"line {index}")
        color = _COLORS[list(dict.fromkeys(kinds)).index(kinds[-1]) % len(_COLORS)]
        parts += _line(line, color, kinds.count(kinds[-1]) > 1, index, x_axis, y_axis)
    legend = _TOP + 20 + 22 * len(shown)
    parts.append(_segment(_WIDTH - _RIGHT + 12, legend, _WIDTH - _RIGHT + 40, legend, "#aaaaaa"))
    parts.append(_text(_WIDTH - _RIGHT + 48, legend + 4, "linear growth", "start"))
    return "\n".join([*parts, "</svg>", ""])


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    """From the last 1, 2 or 5 below all values to the first one above them."""
    low, high = min(values), max(values)
    below, above = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.floor(math.log10(high))
    first = max(step * below for step in _STEPS if step * below <= low * (1 + 1e-9))
    last = min(step * above for step in _STEPS if step * above >= high * (1 - 1e-9))
    return _Axis(first, max(last, 10 * first), start, end)


def _guides(x_axis: _Axis, y_axis: _Axis) -> list[str]:
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
            parts.append(_segment(xs[0], ys[0], xs[1], ys[1], _GUIDE))
    return parts


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for value in x_axis.ticks():
        x = x_axis.pixel(value)
        parts.append(_segment(x, y_axis.start, x, y_axis.start + 5, "#444444"))
        parts.append(_text(x, y_axis.start + 20, _tick(value)))
    for value in y_axis.ticks():
        y = y_axis.pixel(value)
        parts.append(_segment(x_axis.start - 5, y, x_axis.start, y, "#444444"))
        parts.append(_text(x_axis.start - 9, y + 4, _tick(value), "end"))
    width, height = x_axis.end - x_axis.start, y_axis.start - y_axis.end
    frame = f'x="{x_axis.start}" y="{y_axis.end}" width="{width}" height="{height}"'
    return [*parts, f'<rect {frame} fill="none" stroke="#444444"/>']


def _line(
    line: Series, color: str, is_second: bool, index: int, x_axis: _Axis, y_axis: _Axis
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
    parts.append(_segment(left, legend, left + 28, legend, color, dashes, 2))
    # An ellipse, so that every circle of the picture is a point of a line.
    parts.append(
        f'<ellipse cx="{left + 14}" cy="{legend}" rx="3" ry="3" fill="{fill}" stroke="{color}"/>'
    )
    parts.append(_text(left + 36, legend + 4, line.name, "start"))
    return parts


def _dot(x: float, y: float, color: str, fill: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" stroke="{color}"/>'


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:.{-math.floor(math.log10(value))}f}"


def _segment(
    x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "none", width: int = 1
) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-width="{width}" stroke-dasharray="{dashes}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
