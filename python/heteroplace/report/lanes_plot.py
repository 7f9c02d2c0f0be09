"""Lanes -> a figure of matplotlib, which is loaded only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heteroplace.errors import MissingPackageError
from heteroplace.report.lanes import Lanes
from heteroplace.report.lanes_svg import PALETTE
from heteroplace.terminal import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES_PER_LANE, _WIDTH_INCHES = 0.35, 9.0


def lanes_figure(lanes: Lanes) -> Figure:
    """Return a figure with one row for each lane, over milliseconds.

    Raises
    ------
    MissingPackageError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise MissingPackageError(
            "the package matplotlib, which draws figures, is not installed; run: pip install "
            "matplotlib"
        ) from err
    height = 1.0 + _INCHES_PER_LANE * max(len(lanes.lanes), 1)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    axes = figure.add_subplot()
    for row, lane in enumerate(lanes.lanes):
        axes.broken_barh(
            [(bar.start_ns / 1e6, (bar.finish_ns - bar.start_ns) / 1e6) for bar in lane.bars],
            (row - 0.4, 0.8),
            facecolors=[PALETTE[bar.group % len(PALETTE)] for bar in lane.bars],
            edgecolor="white",
            linewidth=0.3,
        )
    # A dollar sign would begin a formula.
    names = [printable(lane.name, "").replace("$", r"\$") for lane in lanes.lanes]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(lanes.end_ns, 1) / 1e6)
    axes.set_xlabel("ms")
    axes.set_title(printable(lanes.title, "").replace("$", r"\$"))
    return figure
