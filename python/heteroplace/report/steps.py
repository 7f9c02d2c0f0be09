"""What the reports ask of a timeline: when a step ran, and what to call it."""

from __future__ import annotations

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Run, Step
from heteroplace.model.timeline import Timeline


def step_times(timeline: Timeline) -> dict[int, tuple[int, int]]:
    """Return (start_ns, finish_ns) by step; a step on several resources counts once."""
    times: dict[int, tuple[int, int]] = {}
    for span in timeline.spans:
        start, finish = times.get(span.step, (span.start_ns, span.finish_ns))
        times[span.step] = (min(start, span.start_ns), max(finish, span.finish_ns))
    return times


def step_name(step: Step, graph: TaskGraph, cluster: Cluster) -> str:
    """Return the task's name, or "TENSOR: FROM -> TO" for a copy."""
    if isinstance(step, Run):
        return graph.tasks[step.task].name
    src, dst = cluster.memories[step.src].name, cluster.memories[step.dst].name
    return f"{graph.tensors[step.tensor].name}: {src} -> {dst}"
