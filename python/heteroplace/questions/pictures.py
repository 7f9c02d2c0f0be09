"""A solution or a timeline -> a figure of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heteroplace.model.solution import Solution
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_ns
from heteroplace.report.lanes import timeline_lanes
from heteroplace.report.lanes_plot import lanes_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(solution: Solution) -> Figure:
    """Draw the simulated timeline of a solution."""
    return lanes_figure(timeline_lanes(solution.timeline, solution_title(solution), solution))


def plot_timeline(timeline: Timeline) -> Figure:
    """Draw a timeline, whose steps have no names."""
    return lanes_figure(timeline_lanes(timeline, timeline_title(timeline)))


def solution_title(solution: Solution) -> str:
    """Return what stands above the picture of a solution."""
    time = format_ns(solution.timeline.makespan_ns)
    return f"{solution.graph.name} on {solution.cluster.name}: {time}, simulated"


def timeline_title(timeline: Timeline) -> str:
    """Return what stands above the picture of a timeline."""
    return f"{format_ns(timeline.makespan_ns)}, {timeline.source}"
