"""Compare a predicted timeline with a measured one: per step, and in rank."""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, devices_of
from heteroplace.model.text.plan_text import step_name
from heteroplace.model.timeline import Timeline
from heteroplace.stats import spearman


@dataclass(frozen=True)
class StepComparison:
    """One step that both timelines have."""

    step: int
    """Position in the plan."""
    name: str
    resource: str
    """Name of the device; "" for a copy."""
    predicted_ns: int
    measured_ns: int


@dataclass(frozen=True)
class TimelineComparison:
    """Two timelines of one plan."""

    steps: tuple[StepComparison, ...]
    rank_correlation: float | None
    """Spearman's, of the durations of the tasks; None: undefined (fewer than two, or all equal)."""


def compare(
    graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline, measured: Timeline
) -> TimelineComparison:
    """Return how far `predicted` is from `measured`; both are timelines of `plan`.

    Raises
    ------
    PlanError
        A timeline has a step that the plan has not.
    """
    times = predicted.step_times, measured.step_times
    beyond = sorted(step for side in times for step in side if step >= len(plan.steps))
    if beyond:
        raise PlanError(
            f"a timeline has step {beyond[0]}, but the plan has {len(plan.steps)} steps; "
            f"compare timelines of this plan"
        )
    rows = []
    for index, step in enumerate(plan.steps):
        if index not in times[0] or index not in times[1]:
            continue
        durations = [side[index][1] - side[index][0] for side in times]
        resource = "+".join(cluster.devices[device].name for device in devices_of(step))
        rows.append(StepComparison(index, step_name(step, graph, cluster), resource, *durations))
    tasks = [row for row in rows if row.resource]
    return TimelineComparison(
        tuple(rows),
        spearman([row.predicted_ns for row in tasks], [row.measured_ns for row in tasks]),
    )
