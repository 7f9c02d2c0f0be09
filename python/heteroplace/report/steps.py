"""What the reports ask of a timeline: when a step ran."""

from __future__ import annotations

from heteroplace.model.timeline import Timeline


def step_times(timeline: Timeline) -> dict[int, tuple[int, int]]:
    """Return (start_ns, finish_ns) by step; a step on several resources counts once."""
    times: dict[int, tuple[int, int]] = {}
    for span in timeline.spans:
        start, finish = times.get(span.step, (span.start_ns, span.finish_ns))
        times[span.step] = (min(start, span.start_ns), max(finish, span.finish_ns))
    return times
