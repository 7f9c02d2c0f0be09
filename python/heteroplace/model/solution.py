"""Everything that belongs to one placed network: graph, cluster, costs, plan and its figures.

This is what travels with an annotated module and inside a compiled file.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, devices_of
from heteroplace.model.speculation import PlannedPrediction


@dataclass(frozen=True)
class RunTime:
    """How long a plan is expected to run, disturbed as its tasks disturb each other."""

    median_ns: int
    low_ns: int
    """A tenth of all runs are quicker."""
    high_ns: int
    """A tenth of all runs are slower."""


@dataclass(frozen=True)
class Solution:
    """A plan with all it refers to."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    plan: Plan
    predicted_ns: int
    """Simulated makespan of the plan."""
    bound_ns: int
    """Of `objective_ns`: no plan can be better, a proven lower bound under the same costs."""
    candidates: tuple[tuple[str, int | None], ...] = ()
    """What the solver compared: name and `objective_ns`; None: found no plan."""
    singles: tuple[tuple[str, int], ...] = ()
    """`objective_ns` with everything on one device, for each device that can run all tasks."""
    expected: RunTime | None = None
    """With interference (`heteroplace.simulate.expect`); None: it was not measured."""
    item_ns: int | None = None
    """Time per item in a steady state, where throughput was asked for; None: latency was."""
    predictions: tuple[PlannedPrediction, ...] = ()
    """Of routers, which its plan has work of."""

    @property
    def objective_ns(self) -> int:
        """What was minimised: the simulated makespan, or the time per item."""
        return self.predicted_ns if self.item_ns is None else self.item_ns

    @property
    def expected_ns(self) -> int:
        """The best prediction of a run there is: the expected median, else the simulated time."""
        return self.predicted_ns if self.expected is None else self.expected.median_ns

    @property
    def gap_ratio(self) -> float:
        """(objective - bound) / objective; 0 is a proof that no plan is better."""
        if self.objective_ns == 0:
            return 0.0
        return (self.objective_ns - self.bound_ns) / self.objective_ns

    @property
    def devices_used(self) -> tuple[str, ...]:
        """Names of the devices that run at least one task, in cluster order."""
        used = {device for step in self.plan.steps for device in devices_of(step)}
        return tuple(d.name for index, d in enumerate(self.cluster.devices) if index in used)

    @property
    def devices_not_used(self) -> tuple[str, ...]:
        """Names of the other devices, in cluster order."""
        used = self.devices_used
        return tuple(device.name for device in self.cluster.devices if device.name not in used)

    @property
    def best_single(self) -> tuple[str, int] | None:
        """The device that is best alone, and its `objective_ns`; None: none can run all tasks."""
        return min(self.singles, key=lambda single: single[1], default=None)
