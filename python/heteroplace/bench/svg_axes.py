"""What the plots share: axes, lines and text as SVG. No plotting package is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#8a6d1c", "#444444")
INK, GUIDE = "#444444", "#cccccc"
_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """Logarithmic."""

    low: float
    high: float
    start: float
    """Pixel of `low`."""
    end: float

    @classmethod
    def around(
        cls, values: Sequence[float], start: float, end: float, least_ratio: float = 10.0
    ) -> Axis:
        """From the last 1, 2 or 5 below all values to the first one above them.

        `least_ratio`: of the two ends.
        """
        low, high = min(values), max(values)
        below, above = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.floor(math.log10(high))
        first = max(step * below for step in _STEPS if step * below <= low * (1 + 1e-9))
        last = min(step * above for step in _STEPS if step * above >= high * (1 - 1e-9))
        return cls(first, max(last, least_ratio * first), start, end)

    def pixel(self, value: float) -> float:
        """Where a value > 0 lies."""
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten; only the powers if there are more than three."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = _STEPS[:1] if self.high / self.low > 1e3 else _STEPS[:3]
        values = [step * 10.0**power for power in powers for step in steps]
        slack = 1 + 1e-9
        return [value for value in values if self.low / slack <= value <= self.high * slack]


@dataclass(frozen=True)
class LinearAxis:
    """From -`limit` to `limit`, for differences."""

    limit: float
    start: float
    """Pixel of -`limit`."""
    end: float

    def pixel(self, value: float) -> float:
        """Where a value lies."""
        return self.start + (value + self.limit) / (2 * self.limit) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """At most nine multiples of 1, 2 or 5 times a power of ten, 0 among them."""
        power = 10.0 ** math.floor(math.log10(self.limit / 4))
        step = next(step * power for step in _STEPS if step * power >= self.limit / 4 * (1 - 1e-9))
        count = math.floor(self.limit / step * (1 + 1e-9))
        return [number * step for number in range(-count, count + 1)]


def frame(x_axis: Axis, y_axis: Axis | LinearAxis) -> list[str]:
    """Return the frame, and ticks with their values outside of it."""
    parts = []
    for value in x_axis.ticks():
        x = x_axis.pixel(value)
        parts.append(segment(x, y_axis.start, x, y_axis.start + 5, INK))
        parts.append(text(x, y_axis.start + 20, tick(value)))
    for value in y_axis.ticks():
        y = y_axis.pixel(value)
        parts.append(segment(x_axis.start - 5, y, x_axis.start, y, INK))
        parts.append(text(x_axis.start - 9, y + 4, tick(value), "end"))
    width, height = x_axis.end - x_axis.start, y_axis.start - y_axis.end
    place = f'x="{x_axis.start}" y="{y_axis.end}" width="{width}" height="{height}"'
    return [*parts, f'<rect {place} fill="none" stroke="{INK}"/>']


def page(width: int, height: int, parts: Sequence[str]) -> str:
    """Return the SVG text of a white page."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">'
    )
    sheet = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, sheet, *parts, "</svg>", ""])


def tick(value: float) -> str:
    """A power of ten, or a multiple of one, as text."""
    if value <= 0:
        return f"-{tick(-value)}" if value else "0"
    return f"{value:,.0f}" if value >= 1 else f"{value:.{-math.floor(math.log10(value))}f}"


def segment(
    x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "none", width: int = 1
) -> str:
    """A straight line."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-width="{width}" stroke-dasharray="{dashes}"/>'
    )


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 12) -> str:
    """Horizontal text at its baseline."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
