"""Rows of the benchmarks -> pictures (SVG, or PNG by the file's name) by matplotlib.

Equal points give equal files: ids in the SVG are drawn from a fixed salt, and no date is written.
Each group has a colour and a marker of its own, so that it can be told apart in print. matplotlib
is imported where it draws: the benchmarks run without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heteroplace.errors import HeteroPlaceError
from heteroplace.report.accuracy import error_ratios

BAND_RATIO = 0.1
"""Half of the width of the band around a perfect prediction."""

_COLORS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#8a6d1c", "#444444")
_MORE_COLORS = ("#7fb3d5", "#e6b0aa", "#a9d3ab", "#c3a6d0")
"""Where more are told apart by what stands beside them."""
_MARKERS = "os^DXv"
_INK, _GUIDE, _BAND = "#444444", "#cccccc", "#e4ecf3"
_MIN_ERROR_PERCENT = 20.0
"""The panel of errors reaches at least so far."""
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "heteroplace",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.edgecolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Series:
    """Points of one kind: of a line, or of a cloud."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), both > 0."""
    note: str = ""
    """A second line in the legend."""


@dataclass(frozen=True)
class Panel:
    """Curves in one frame."""

    title: str
    series: tuple[Series, ...]
    limit: float | None = None
    """What no curve can exceed, drawn as a line; None: not known."""


@dataclass(frozen=True)
class BarPanel:
    """Groups of bars in one frame."""

    title: str
    groups: tuple[str, ...]
    bars: Mapping[str, tuple[float | None, ...]]
    """By name, a value for each group."""
    level: float | None = None
    """A line across, such as at a ratio of 1; None: none."""


def check_can_plot(path: Path) -> None:
    """Ask for a plot before an hour of measuring, and not after it.

    Raises
    ------
    HeteroPlaceError
        matplotlib is not installed, or the file cannot be written.
    """
    check_can_draw(f"plot {path}")
    try:
        path.touch()
    except OSError as err:
        raise HeteroPlaceError(f"plot {path}: {err.strerror}") from err


def check_can_draw(what: str = "pictures") -> None:
    """Raise HeteroPlaceError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as err:
        raise HeteroPlaceError(
            f"{what}: needs matplotlib; install it: pip install 'heteroplace[bench]'"
        ) from err


def plot_growth(path: Path, series: Sequence[Series], y_label: str) -> None:
    """Write lines over the number of tasks, both axes logarithmic; grey ones show linear growth.

    A name is "WHAT, FAMILY": a colour for each "what", and dashes and hollow points for the second
    family and those after it. A point that is not > 0 is left out.

    Parameters
    ----------
    path
        Its suffix says the form: .svg, .png, .pdf.
    series
        (number of tasks, seconds) of each line.
    y_label
        With the unit.

    Raises
    ------
    HeteroPlaceError
        No point is > 0.
    """
    shown = [Series(s.name, tuple(p for p in s.points if min(p) > 0)) for s in series]
    shown = [one for one in shown if one.points]
    if not shown:
        raise HeteroPlaceError("nothing to plot: no point has x > 0 and y > 0")
    kinds: dict[str, int] = {}
    with _picture(path, 9.0, 5.0) as figure:
        axes = figure.add_subplot(xscale="log", yscale="log", xlabel="tasks", ylabel=y_label)
        axes.set_title("Time against the size of the graph", loc="left")
        for line in shown:
            kind = line.name.partition(",")[0]
            is_first = kind not in kinds
            color = _COLORS[kinds.setdefault(kind, len(kinds)) % len(_COLORS)]
            style = {"linestyle": "-" if is_first else "--", "mfc": color if is_first else "white"}
            points = zip(*line.points, strict=True)
            axes.plot(*points, marker="o", ms=5, color=color, label=line.name, **style)
        _draw_linear_growth(axes)
        _legend(axes)


def _draw_linear_growth(axes: Any) -> None:
    """Lines y = c x through the frame, c the powers of ten; the frame stays as it is."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for power in range(-12, 1):
        label = "linear growth" if power == 0 else None
        ends = (left, right), (left * 10.0**power, right * 10.0**power)
        axes.plot(*ends, color=_GUIDE, linewidth=0.8, zorder=0, label=label)
    axes.set(xlim=(left, right), ylim=(bottom, top))


def plot_predictions(path: Path, groups: Sequence[Series], unit: str) -> None:
    """Write predicted over measured times, with the diagonal and a band of +-10 %.

    Below, the errors of the same points over the measured time, since a band of 10 % is thin where
    times span decades.

    Parameters
    ----------
    path
        Its suffix says the form: .svg, .png, .pdf.
    groups
        (measured, predicted) of each group; at least one point in all.
    unit
        Of both, e.g. "ms".

    Raises
    ------
    HeteroPlaceError
        There is no point, or a value is not > 0.
    """
    points = [point for group in groups for point in group.points]
    if not points:
        raise HeteroPlaceError("nothing to plot: there is no point")
    least, most = min(map(min, points)), max(map(max, points))
    if least <= 0:
        raise HeteroPlaceError(f"a value is {least}: expected > 0")
    ends = (least / 1.1, most * 1.1)
    with _picture(path, 8.4, 8.4) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.3))
        above.set_title("Makespan of plans: predicted against measured", loc="left")
        above.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        above.set_ylabel(f"predicted time ({unit})")
        below.set_xlabel(f"measured time ({unit})")
        below.set_ylabel("error of the prediction\n(% of measured)")
        _draw_perfect(above, below, ends)
        errors = [_draw_group(above, below, index, group) for index, group in enumerate(groups)]
        limit = max(_MIN_ERROR_PERCENT, 1.1 * max(errors))
        below.set_ylim(-limit, limit)
        _legend(above)


def plot_fronts(path: Path, fronts: Sequence[Series]) -> None:
    """Write throughput over peak memory: what no other configuration is both above and left of.

    Parameters
    ----------
    path
        Its suffix says the form: .svg, .png, .pdf.
    fronts
        (peak GiB, rows per second) of each front, ascending.

    Raises
    ------
    HeteroPlaceError
        There is no point, or a value is not > 0.
    """
    values = [value for front in fronts for point in front.points for value in point]
    if not values or min(values) <= 0:
        raise HeteroPlaceError("nothing to plot: expected points with values > 0")
    with _picture(path, 9.0, 5.0) as figure:
        axes = figure.add_subplot(xscale="log", yscale="log")
        axes.set(xlabel="peak memory of a device (GiB)", ylabel="rows per second, simulated")
        axes.set_title("Throughput against memory: the best of all degrees", loc="left")
        for index, front in enumerate(fronts):
            color, marker = _COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)]
            label = f"{front.name}\n{front.note}" if front.note else front.name
            points = zip(*front.points, strict=True)
            axes.plot(*points, marker=marker, color=color, label=label, drawstyle="steps-post")
        _legend(axes)


def plot_steps(path: Path, panels: Sequence[Panel], x_label: str, y_label: str) -> None:
    """Write curves that stay at a value until the next point, a panel beside the other.

    Parameters
    ----------
    path
        Its suffix says the form: .svg, .png, .pdf.
    panels
        Of each its curves, points ascending in x > 0.

    Raises
    ------
    HeteroPlaceError
        There is no point, or a value is not > 0.
    """
    values = [v for panel in panels for one in panel.series for point in one.points for v in point]
    if not values or min(values) <= 0:
        raise HeteroPlaceError("nothing to plot: expected points with values > 0")
    names = list(dict.fromkeys(one.name for panel in panels for one in panel.series))
    with _picture(path, 3.4 * len(panels) + 2.0, 3.8) as figure:
        columns = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(columns, panels, strict=True):
            axes.set_title(panel.title, loc="left")
            axes.set(xscale="log", xlabel=x_label)
            for one in panel.series:
                index = names.index(one.name)
                look = {"color": _COLORS[index % len(_COLORS)], "label": one.name}
                if len(one.points) > 1:
                    xs, ys = zip(*one.points, strict=True)
                    marks = {"marker": _MARKERS[index % len(_MARKERS)], "ms": 4}
                    axes.plot(xs, ys, drawstyle="steps-post", **marks, **look)
                else:
                    axes.plot(*one.points[0], "_", ms=12, **look)
            if panel.limit is not None:
                axes.axhline(panel.limit, linestyle="--", color=_INK, linewidth=1, label="bound")
        columns[0].set_ylabel(y_label)
        _legend(columns[-1])


def plot_bars(
    path: Path, panels: Sequence[BarPanel], y_label: str, *, is_log: bool = False
) -> None:
    """Write groups of bars, two panels in a row; a value that is None has no bar.

    Parameters
    ----------
    path
        Its suffix says the form: .svg, .png, .pdf.
    is_log
        Whether values span decades.

    Raises
    ------
    HeteroPlaceError
        There is no bar, or a value is not > 0.
    """
    bars = [v for panel in panels for row in panel.bars.values() for v in row if v is not None]
    if not bars or min(bars) <= 0:
        raise HeteroPlaceError("nothing to plot: expected bars with values > 0")
    names = list(dict.fromkeys(name for panel in panels for name in panel.bars))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    width = max(6.5 * columns, 1.25 * len(panels[0].groups)) + 1.6
    with _picture(path, width, 3.4 * rows + 0.4) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set_title(panel.title, loc="left")
            axes.set(yscale="log" if is_log else "linear")
            _draw_bars(axes, panel, names)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for row in grid:
            row[0].set_ylabel(y_label)
        _legend(grid[0][-1])


def _draw_bars(axes: Any, panel: BarPanel, names: Sequence[str]) -> None:
    """The groups stand at 0, 1, ...; the bars of one fill four fifths of it."""
    width = 0.8 / len(names)
    colors = (*_COLORS, *_MORE_COLORS)
    for index, name in enumerate(names):
        values = panel.bars.get(name, ())
        bars = [(place, value) for place, value in enumerate(values) if value is not None]
        places = [place + (index - (len(names) - 1) / 2) * width for place, _ in bars]
        heights = [value for _, value in bars]
        axes.bar(places, heights, width * 0.92, color=colors[index % len(colors)], label=name)
    if panel.level is not None:
        axes.axhline(panel.level, linestyle="--", color=_INK, linewidth=1)
    slant = {"rotation": 30, "ha": "right"} if len(panel.groups) > 4 else {}
    axes.set_xticks(range(len(panel.groups)), panel.groups, **slant)
    axes.tick_params(axis="x", length=0)


def _draw_perfect(above: Any, below: Any, ends: tuple[float, float]) -> None:
    """Where predictions hold, and the band around it."""
    lower, upper = ([(1 + sign * BAND_RATIO) * end for end in ends] for sign in (-1, 1))
    band = f"within {100 * BAND_RATIO:.0f} %"
    above.fill_between(ends, lower, upper, color=_BAND, linewidth=0, label=band)
    above.plot(ends, ends, "--", color=_INK, linewidth=1, label="predicted = measured")
    below.axhspan(-100 * BAND_RATIO, 100 * BAND_RATIO, color=_BAND, linewidth=0)
    below.axhline(0, linestyle="--", color=_INK, linewidth=1)


def _draw_group(above: Any, below: Any, index: int, group: Series) -> float:
    """Draw the points of one group; return the largest error in percent."""
    measured, predicted = ([point[side] for point in group.points] for side in (0, 1))
    errors = [100 * error for error in error_ratios(predicted, measured)]
    label = f"{group.name}\n{group.note}" if group.note else group.name
    look = {"color": _COLORS[index % len(_COLORS)], "marker": _MARKERS[index % len(_MARKERS)]}
    above.scatter(measured, predicted, s=26, alpha=0.6, linewidths=0, label=label, **look)
    below.scatter(measured, errors, s=26, alpha=0.6, linewidths=0, **look)
    return max(map(abs, errors), default=0.0)


@contextmanager
def _picture(path: Path, width: float, height: float) -> Iterator[Any]:
    """A figure of so many inches, written at the end; none of the state that `pyplot` keeps."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for axes in figure.axes:
            _number_ticks(axes)
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata, dpi=120)


def _number_ticks(axes: Any) -> None:
    """Ticks of logarithmic axes as plain numbers, at 1, 2 and 5 where decades are few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() != "log":
            continue
        low, high = axis.get_view_interval()
        steps = (1.0, 2.0, 5.0) if high / low < 1e4 else (1.0,)
        axis.set_major_locator(MaxNLocator(6) if high / low < 4 else LogLocator(subs=steps))
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_locator(NullLocator())


def _legend(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, labelspacing=0.8)
