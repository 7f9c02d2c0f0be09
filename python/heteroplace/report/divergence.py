"""Where a measured timeline falls behind (or runs ahead of) the predicted one, device by device.

A device's finish is the sum of its work and of its pauses: each step adds the difference of its own
time and that of the pause before it. Errors of work are errors of costs; errors of pauses come from
other devices, or from what the prediction does not know of (waits, hand-overs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Collective, Plan, Run, devices_of
from heteroplace.model.text.plan_text import step_name
from heteroplace.model.timeline import Timeline
from heteroplace.model.units import format_ns
from heteroplace.report.tables import format_table


@dataclass(frozen=True)
class Divergence:
    """One run of a task in both timelines."""

    step: int
    """Position in the plan."""
    name: str
    device: int
    work_ns: tuple[int, int]
    """Its time, predicted and measured."""
    pause_ns: tuple[int, int]
    """Predicted and measured time since the device's last step that both timelines have, or since
    the start; negative if a core helped elsewhere meanwhile."""

    @property
    def lag_ns(self) -> int:
        """By how much the measured device falls behind here; negative: it catches up."""
        return sum(side[1] - side[0] for side in (self.work_ns, self.pause_ns))


def divergences(
    graph: TaskGraph, cluster: Cluster, plan: Plan, predicted: Timeline, measured: Timeline
) -> tuple[Divergence, ...]:
    """Return the runs that both timelines of `plan` have, by device and in predicted order.

    The lags of a device sum up to the difference between the finishes of its last run.
    """
    times = predicted.step_times, measured.step_times
    shared = [
        index
        for index, step in enumerate(plan.steps)
        if isinstance(step, (Run, Collective)) and index in times[0] and index in times[1]
    ]
    differing = []
    for device in range(len(cluster.devices)):
        own = [index for index in shared if device in devices_of(plan.steps[index])]
        last = (0, 0)
        for index in sorted(own, key=lambda index: (times[0][index], index)):
            spans = times[0][index], times[1][index]
            work = spans[0][1] - spans[0][0], spans[1][1] - spans[1][0]
            pause = spans[0][0] - last[0], spans[1][0] - last[1]
            name = step_name(plan.steps[index], graph, cluster)
            differing.append(Divergence(index, name, device, work, pause))
            last = spans[0][1], spans[1][1]
    return tuple(differing)


def divergence_table(cluster: Cluster, differing: Sequence[Divergence], max_rows: int = 8) -> str:
    """Return work and pauses of each device in both timelines, and the steps with most lag."""
    rows = []
    for index, device in enumerate(cluster.devices):
        own = [one for one in differing if one.device == index]
        if own:
            rows.append(
                [
                    device.name,
                    *(format_ns(sum(one.work_ns[side] for one in own)) for side in (0, 1)),
                    *(format_ns(sum(one.pause_ns[side] for one in own)) for side in (0, 1)),
                    _signed(sum(one.lag_ns for one in own)),
                ]
            )
    headers = ["on", "work predicted", "measured", "pauses predicted", "measured", "lag"]
    devices = format_table(headers, rows, "<>>>>>")
    worst = sorted(differing, key=lambda one: (-abs(one.lag_ns), one.step))[:max_rows]
    steps = [
        [
            one.name,
            cluster.devices[one.device].name,
            *(format_ns(value) for value in one.work_ns),
            *(format_ns(value) for value in one.pause_ns),
            _signed(one.lag_ns),
        ]
        for one in worst
    ]
    return f"{devices}\n\n{format_table(['step', *headers], steps, '<<>>>>>')}"


def _signed(ns: int) -> str:
    return ("+" if ns > 0 else "") + format_ns(ns)
