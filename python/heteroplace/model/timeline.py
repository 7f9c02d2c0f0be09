"""When each step of a plan started and finished: simulated, or measured in a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One step on one resource."""

    step: int
    """Position of the step in the plan."""
    resource: str
    """Name of the device or channel."""
    start_ns: int
    finish_ns: int


@dataclass(frozen=True)
class Timeline:
    """Start and finish of every step, relative to the start of the run."""

    spans: tuple[Span, ...]
    """In plan order. A step that has no kernel of its own in the compiled program (a reshape) may
    be missing from a measured timeline."""
    source: str
    """"simulated" or "measured"."""
    peak_bytes: tuple[int, ...] = ()
    """For each memory the largest number of bytes in use; empty: not known."""
    makespan_ns: int = 0
    """Finish of the last step."""
