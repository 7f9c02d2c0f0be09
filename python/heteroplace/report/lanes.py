"""A timeline -> lanes: for each device or channel its steps as named bars, to be drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from heteroplace.model.plan import Collective, Run
from heteroplace.model.solution import Solution
from heteroplace.model.text.plan_text import step_name
from heteroplace.model.timeline import Timeline

COMPUTES, MOVES = 0, 1
"""Groups of bars: an op on a device; a copy or a load on a channel. Each call of a trace is one."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A time in which a lane was busy."""

    start_ns: int
    finish_ns: int
    text: str
    group: int
    """Bars of one group have one colour."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A device, a channel or a queue, and its bars by their starts."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """All that one picture shows."""

    title: str
    lanes: tuple[Lane, ...]

    @property
    def end_ns(self) -> int:
        """Where the last bar ends; 0: there is none."""
        return max((bar.finish_ns for lane in self.lanes for bar in lane.bars), default=0)


def timeline_lanes(timeline: Timeline, title: str, solution: Solution | None = None) -> Lanes:
    """Return the lanes of a timeline.

    Parameters
    ----------
    solution
        It names steps, and orders lanes as its cluster does: devices, then channels. Devices
        without steps have a lane too. None: steps have numbers, and lanes the order of their names.
    """
    if solution is None:
        names = sorted({span.resource for span in timeline.spans})
    else:
        names = [device.name for device in solution.cluster.devices]
    bars = []
    for span in timeline.spans:
        text, group = f"step {span.step}", COMPUTES
        if solution is not None:
            step = solution.plan.steps[span.step]
            text = step_name(step, solution.graph, solution.cluster)
            group = COMPUTES if isinstance(step, (Run, Collective)) else MOVES
        bars.append((span.resource, Bar(span.start_ns, span.finish_ns, text, group)))
    return sorted_lanes(title, names, bars)


def sorted_lanes(title: str, names: Iterable[str], bars: Iterable[tuple[str, Bar]]) -> Lanes:
    """Return lanes of bars in any order.

    Parameters
    ----------
    names
        Of the first lanes; others follow as their first bars do.
    bars
        Each with the name of its lane.
    """
    of_lane: dict[str, list[Bar]] = {name: [] for name in names}
    for name, bar in bars:
        of_lane.setdefault(name, []).append(bar)
    lanes = [
        Lane(name, tuple(sorted(own, key=lambda bar: (bar.start_ns, bar.finish_ns))))
        for name, own in of_lane.items()
    ]
    return Lanes(title, tuple(lanes))
