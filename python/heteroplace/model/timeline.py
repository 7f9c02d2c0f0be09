"""When each step of a plan started and finished: simulated, or measured in a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from heteroplace.model.answers import answerer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Span:
    """One step on one resource."""

    step: int
    """Position of the step in the plan."""
    resource: str
    """Name of the device or channel."""
    start_ns: int
    finish_ns: int


@dataclass(frozen=True, slots=True)
class Peak:
    """When a memory first holds as many live bytes as ever."""

    time_ns: int
    step: int | None
    """The step that starts then and brings the last of them; None: they are there before any."""


@dataclass(frozen=True)
class Timeline:
    """Start and finish of every step, relative to the start of the run."""

    spans: tuple[Span, ...]
    """In plan order. A step that has no kernel of its own in the compiled program (a reshape) may
    be missing from a measured timeline."""
    source: str
    """"simulated" or "measured"."""
    peak_bytes: tuple[int, ...] = ()
    """For each memory the largest number of bytes that are live at once; empty: not known."""
    makespan_ns: int = 0
    """Finish of the last step."""
    items: int = 1
    """Number of model inputs that were served."""
    used_bytes: tuple[int, ...] = ()
    """For each memory the bytes in use if nothing is freed: the static rule of
    `heteroplace.model.memory_use.memory`, which limits plans; empty: not known."""
    peaks: tuple[Peak, ...] = ()
    """For each memory when `peak_bytes` is reached; empty: not known."""

    def __repr__(self) -> str:
        return str(answerer("timeline_repr")(self))

    def _repr_html_(self) -> str:
        """Return the timeline as a picture for a notebook."""
        return str(answerer("timeline_html")(self))

    def plot(self) -> Figure:
        """Return a figure of matplotlib with a row for each device and channel.

        Raises
        ------
        MissingPackageError
            matplotlib is not installed.
        """
        figure: Figure = answerer("timeline_plot")(self)
        return figure

    @cached_property
    def step_times(self) -> Mapping[int, tuple[int, int]]:
        """(start_ns, finish_ns) by step; a step on several resources counts once."""
        times: dict[int, tuple[int, int]] = {}
        for span in self.spans:
            before = times.get(span.step)
            start, finish = span.start_ns, span.finish_ns
            if before is not None:
                start, finish = min(start, before[0]), max(finish, before[1])
            times[span.step] = (start, finish)
        return times

    @property
    def throughput(self) -> float:
        """Items per second, from the start of the first step to the finish of the last."""
        return self.items * 1e9 / self.makespan_ns if self.makespan_ns else math.inf
