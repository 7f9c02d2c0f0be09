"""Kernel calls of a plan -> the step that each belongs to, and where it is made."""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.errors import LoweringError
from heteroplace.lower.kernels import KernelCall
from heteroplace.model.cluster import Cluster
from heteroplace.model.graph import TaskGraph
from heteroplace.model.plan import Plan, Run


@dataclass(frozen=True)
class CallPlace:
    """Where something is made."""

    device: int
    """-1: by none, it is loaded."""
    memory: int
    step: int


class CallPlaces:
    """Finds the steps of calls."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, plan: Plan) -> None:
        self._cluster = cluster
        self._num_items = plan.items
        self._runs = {
            (graph.tasks[step.task].name, step.items): (index, step.device)
            for index, step in enumerate(plan.steps)
            if isinstance(step, Run)
        }

    def of(self, call: KernelCall) -> CallPlace:
        """Return the place of a call.

        Raises
        ------
        LoweringError
            The plan does not run its task for its items.
        """
        run = call.at or self._runs.get((call.task, call.items))
        if run is None:
            which = "" if self._num_items == 1 else f" for items {call.items}"
            raise LoweringError(
                f"kernel {call.kernel} belongs to task {call.task!r}, which the plan does not "
                f"run{which}; the module and its plan do not belong together"
            )
        step, device = run
        return CallPlace(device, self._cluster.devices[device].memory, step)
