"""Each value the time when it is there: the simulator in its plainest form, an oracle for the core.

DistIR (arXiv 2111.05426, section 4): one pass over the program, a clock for each of what serves one
step at a time. A step starts when all that it occupies is free, what it reads is there, and nobody
is at what it writes in place: a shared tensor that it adds to, or state that it updates.
"""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cost import CostTable
from heteroplace.model.graph import TaskGraph
from heteroplace.model.step_values import occupied, step_ns
from tests.reference.distir.interpret import Key, StepCall


class CostDomain:
    """A domain of `interpret`; after a walk it has the times of all steps."""

    def __init__(self, graph: TaskGraph, cluster: Cluster, costs: CostTable) -> None:
        """Begin at 0 ns; raises CostMismatchError if the costs are of others."""
        costs.check(graph, cluster)
        self._graph = graph
        self._cluster = cluster
        self._costs = costs
        self._free_ns: dict[int, int] = {}
        """For each resource the time from which it is free."""
        self._left_ns: dict[Key, int] = {}
        """For each value the time from which nobody brings or reads it."""
        self.times_ns: list[tuple[int, int]] = []
        """Start and finish of each step so far."""

    @property
    def makespan_ns(self) -> int:
        """The finish of the last step."""
        return max((finish for _, finish in self.times_ns), default=0)

    def given(self, key: Key) -> int:
        """See `Domain.given`: inputs are there from the start."""
        return 0

    def apply(self, call: StepCall, values: Mapping[Key, int]) -> dict[Key, int]:
        """See `Domain.apply`; raises PlanError for a step that the device cannot run."""
        duration = step_ns(self._graph, self._cluster, self._costs, call.step)
        if duration is None:
            raise PlanError(f"step {call.index}: the device cannot run it; `check_plan` says why")
        resources = occupied(self._graph, self._cluster, call.step)
        free = [self._free_ns.get(resource, 0) for resource in resources]
        left = [self._left_ns.get(key, 0) for key in self._in_place(call, values)]
        start = max((*free, *left, *(values[key] for key in call.reads)), default=0)
        finish = start + duration
        self._free_ns.update(dict.fromkeys(resources, finish))
        for key in call.makes:
            if key not in values:
                self._left_ns.pop(key, None)
        for key in (*call.reads, *call.makes):
            self._left_ns[key] = max(self._left_ns.get(key, 0), finish)
        self.times_ns.append((start, finish))
        return dict.fromkeys(call.makes, finish)

    def _in_place(self, call: StepCall, values: Mapping[Key, int]) -> list[Key]:
        """What the step adds to or replaces."""
        states = [
            (self._graph.state_of[tensor], memory, 0)
            for tensor, memory, _ in call.makes
            if tensor in self._graph.state_of
        ]
        return [*states, *(key for key in call.makes if key in values)]
