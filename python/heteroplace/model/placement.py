"""Everything that belongs to one placed network: graph, cluster, costs, plan and its figures.

This is what travels with an annotated module and inside a compiled file.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from heteroplace.errors import PlanError
from heteroplace.model.cluster import Cluster
from heteroplace.model.cluster_file import cluster_from_json, cluster_to_json
from heteroplace.model.cost import CostTable
from heteroplace.model.cost_file import costs_from_json, costs_to_json
from heteroplace.model.graph import TaskGraph
from heteroplace.model.graph_file import graph_from_json, graph_to_json
from heteroplace.model.plan import Plan
from heteroplace.model.plan_file import plan_from_json, plan_to_json

PLACEMENT_VERSION = 2
"""Version of the JSON form."""


@dataclass(frozen=True)
class RunTime:
    """How long a plan is expected to run, disturbed as its tasks disturb each other."""

    median_ns: int
    low_ns: int
    """A tenth of all runs are quicker."""
    high_ns: int
    """A tenth of all runs are slower."""


@dataclass(frozen=True)
class Placement:
    """A plan with all it refers to."""

    graph: TaskGraph
    cluster: Cluster
    costs: CostTable
    plan: Plan
    predicted_ns: int
    """Simulated makespan of the plan."""
    bound_ns: int
    """No plan can be faster: a proven lower bound under the same costs."""
    candidates: tuple[tuple[str, int | None], ...] = ()
    """What the solver compared: name and simulated makespan; None: found no plan."""
    singles: tuple[tuple[str, int], ...] = ()
    """Simulated makespan with everything on one device, for each device that can run all tasks."""
    expected: RunTime | None = None
    """With interference (`heteroplace.simulate.expect`); None: it was not measured."""

    @property
    def expected_ns(self) -> int:
        """The best prediction of a run there is: the expected median, else the simulated time."""
        return self.predicted_ns if self.expected is None else self.expected.median_ns

    @property
    def gap_ratio(self) -> float:
        """(predicted - bound) / predicted; 0 is a proof that no plan is faster."""
        if self.predicted_ns == 0:
            return 0.0
        return (self.predicted_ns - self.bound_ns) / self.predicted_ns

    @property
    def devices_used(self) -> tuple[str, ...]:
        """Names of the devices that run at least one task, in cluster order."""
        used = set(self.plan.placement(len(self.graph.tasks)))
        return tuple(d.name for index, d in enumerate(self.cluster.devices) if index in used)

    @property
    def best_single(self) -> tuple[str, int] | None:
        """The device that runs everything alone in the shortest time, and that time in ns."""
        return min(self.singles, key=lambda single: single[1], default=None)

    def to_json(self) -> str:
        """Return the JSON text."""
        return json.dumps(
            {
                "placement_version": PLACEMENT_VERSION,
                "graph": graph_to_json(self.graph),
                "cluster": cluster_to_json(self.cluster),
                "costs": costs_to_json(self.costs, self.graph, self.cluster),
                "plan": plan_to_json(self.plan, self.graph, self.cluster),
                "predicted_ns": self.predicted_ns,
                "bound_ns": self.bound_ns,
                "candidates": [list(candidate) for candidate in self.candidates],
                "singles": [list(single) for single in self.singles],
                "expected_ns": None if self.expected is None else list(astuple(self.expected)),
            }
        )

    @classmethod
    def from_json(cls, text: str, source: str = "placement") -> Placement:
        """Read the JSON text.

        Raises
        ------
        PlanError
            Another version, or a field is missing. (Faults inside graph, cluster, costs and plan
            are raised as their own error types.)
        """
        try:
            value = json.loads(text)
            version = value["placement_version"]
            if version != PLACEMENT_VERSION:
                raise PlanError(
                    f"{source}: placement version {version}, this heteroplace reads "
                    f"{PLACEMENT_VERSION}; place the model again"
                )
            graph = graph_from_json(value["graph"], f"{source}: graph").graph
            cluster = cluster_from_json(value["cluster"], f"{source}: cluster")
            costs = costs_from_json(value["costs"], graph, cluster, f"{source}: costs")
            plan = plan_from_json(value["plan"], graph, cluster, f"{source}: plan")
            candidates = tuple((str(name), ns) for name, ns in value["candidates"])
            singles = tuple((str(name), int(ns)) for name, ns in value["singles"])
            predicted_ns, bound_ns = int(value["predicted_ns"]), int(value["bound_ns"])
            times = value["expected_ns"]
            expected = None if times is None else RunTime(*(int(ns) for ns in times))
        except (KeyError, TypeError, ValueError) as err:
            raise PlanError(
                f"{source}: not a placement that heteroplace wrote ({err}); place the model again"
            ) from err
        return cls(
            graph, cluster, costs, plan, predicted_ns, bound_ns, candidates, singles, expected
        )
