"""Lanes -> one inline SVG, for pages that show a result in passing: it has no scripts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from heteroplace.model.units import format_ns
from heteroplace.report.lanes import Bar, Lane, Lanes
from heteroplace.terminal import printable

_WIDTH, _LABELS, _LANE, _AXIS = 900, 140, 20, 20
"""Pixels: of the picture, of the names of lanes, of a lane's height, of the axis."""
_MIN_BAR = 1.0
"""Bars that are narrower are drawn together: a lane never has more than its width in pixels."""
_MAX_LANES, _MAX_NAME, _NUM_TICKS = 40, 20, 4
PALETTE = ("#4477aa", "#bbbbbb", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
"""Colours of groups (Paul Tol's bright scheme); the second one is that of copies."""


def lanes_svg(lanes: Lanes) -> str:
    """Return lanes as an SVG element; "" if nothing takes any time."""
    end_ns = lanes.end_ns
    if not end_ns:
        return ""
    shown = lanes.lanes[:_MAX_LANES]
    height = len(shown) * _LANE + _AXIS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11" role="img">'
        f"<title>{_escaped(lanes.title)}</title>"
    ]
    per_ns = (_WIDTH - _LABELS) / end_ns
    for row, lane in enumerate(shown):
        top = row * _LANE
        parts.append(
            f'<text x="{_LABELS - 6}" y="{top + 14}" text-anchor="end" fill="currentColor">'
            f"{_escaped(_short(lane.name))}</text>"
        )
        parts += [_bar(bar, top, per_ns) for bar in _drawn_together(lane, per_ns)]
    parts += list(_axis(end_ns, len(shown) * _LANE))
    return "".join(parts) + "</svg>"


def _bar(bar: Bar, top: int, per_ns: float) -> str:
    left, width = _LABELS + bar.start_ns * per_ns, (bar.finish_ns - bar.start_ns) * per_ns
    time = format_ns(bar.finish_ns - bar.start_ns)
    return (
        f'<rect x="{left:.1f}" y="{top + 3}" width="{max(width, _MIN_BAR / 2):.1f}" '
        f'height="{_LANE - 6}" fill="{PALETTE[bar.group % len(PALETTE)]}" stroke="#ffffff" '
        f'stroke-width="0.3"><title>{_escaped(bar.text)}, {time}</title></rect>'
    )


def _drawn_together(lane: Lane, per_ns: float) -> Iterator[Bar]:
    """Yield the bars of a lane; those that follow each other within a pixel are one."""
    count, joined = 0, None
    for bar in lane.bars:
        if joined is None:
            count, joined = 1, bar
        elif joined.group == bar.group and (bar.finish_ns - joined.start_ns) * per_ns < _MIN_BAR:
            count += 1
            finish_ns = max(joined.finish_ns, bar.finish_ns)
            joined = Bar(joined.start_ns, finish_ns, f"{count} steps", bar.group)
        else:
            yield joined
            count, joined = 1, bar
    if joined is not None:
        yield joined


def _axis(end_ns: int, top: int) -> Iterator[str]:
    for tick in range(_NUM_TICKS + 1):
        left = _LABELS + (_WIDTH - _LABELS) * tick / _NUM_TICKS
        anchor = "end" if tick == _NUM_TICKS else "middle" if tick else "start"
        text = format_ns(end_ns * tick // _NUM_TICKS)
        yield (
            f'<line x1="{left:.1f}" y1="0" x2="{left:.1f}" y2="{top}" stroke="currentColor" '
            f'stroke-opacity="0.2"/><text x="{left:.1f}" y="{top + 14}" '
            f'text-anchor="{anchor}" fill="currentColor">{text}</text>'
        )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."


def _escaped(text: str) -> str:
    return escape(printable(text, ""))
