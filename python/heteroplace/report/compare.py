"""Compare a predicted timeline with a measured one: per step, in rank, and as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run
from heteroplace.model.text.plan import step_name
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_ns
from heteroplace.report.steps import step_times
from heteroplace.report.tables import format_table
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

    @property
    def error_ns(self) -> int:
        """By how much the prediction is too long; negative: too short."""
        return self.predicted_ns - self.measured_ns


@dataclass(frozen=True)
class Comparison:
    """Two timelines of one plan."""

    steps: tuple[StepComparison, ...]
    missing: tuple[int, ...]
    """Steps of the plan that only one of the timelines has, or none."""
    predicted_ns: int
    """Predicted makespan."""
    measured_ns: int
    """Measured makespan."""
    rank_correlation: float | None
    """Spearman's, of the durations of the tasks; None: undefined (fewer than two, or all equal)."""

    @property
    def error_ratio(self) -> float | None:
        """(predicted - measured) / measured makespan; None if nothing was measured."""
        if not self.measured_ns:
            return None
        return (self.predicted_ns - self.measured_ns) / self.measured_ns


def compare(
    graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline, measured: Timeline
) -> Comparison:
    """Return how far `predicted` is from `measured`; both are timelines of `plan`.

    Raises
    ------
    PlanError
        A timeline has a step that the plan has not.
    """
    times = step_times(predicted), step_times(measured)
    beyond = sorted(step for side in times for step in side if step >= len(plan.steps))
    if beyond:
        raise PlanError(
            f"a timeline has step {beyond[0]}, but the plan has {len(plan.steps)} steps; "
            f"compare timelines of this plan"
        )
    rows, missing = [], []
    for index, step in enumerate(plan.steps):
        if index not in times[0] or index not in times[1]:
            missing.append(index)
            continue
        durations = [side[index][1] - side[index][0] for side in times]
        resource = cluster.devices[step.device].name if isinstance(step, Run) else ""
        rows.append(StepComparison(index, step_name(step, graph, cluster), resource, *durations))
    tasks = [row for row in rows if row.resource]
    return Comparison(
        tuple(rows),
        tuple(missing),
        predicted.makespan_ns,
        measured.makespan_ns,
        spearman([row.predicted_ns for row in tasks], [row.measured_ns for row in tasks]),
    )


def comparison_table(comparison: Comparison, max_rows: int = 20) -> str:
    """Return the makespans, the rank correlation and the steps with the largest errors."""
    ratio, rank = comparison.error_ratio, comparison.rank_correlation
    lines = [
        f"makespan: predicted {format_ns(comparison.predicted_ns)}, measured "
        f"{format_ns(comparison.measured_ns)}"
        + (f" (error {100 * ratio:+.0f} %)" if ratio is not None else ""),
        f"rank correlation of task times: {rank:.2f}" if rank is not None else "",
    ]
    worst = sorted(comparison.steps, key=lambda row: (-abs(row.error_ns), row.step))[:max_rows]
    rows = [
        [
            row.name,
            row.resource or "copy",
            format_ns(row.predicted_ns),
            format_ns(row.measured_ns),
            ("+" if row.error_ns > 0 else "") + format_ns(row.error_ns),
        ]
        for row in worst
    ]
    if rows:
        lines.append(format_table(["step", "on", "predicted", "measured", "error"], rows, "<<>>>"))
    if comparison.missing:
        lines.append(f"{len(comparison.missing)} steps are missing in one of the timelines")
    return "\n".join(line for line in lines if line)
