"""The file of the option `plan_in` -> a plan of the graph at hand, without solving."""

from __future__ import annotations

import os
from dataclasses import dataclass

from heteroplace.errors import PlanError
from heteroplace.files.fields.kinds import read_known_file
from heteroplace.files.plan_file import plan_to_json, replayed_plan
from heteroplace.files.solution_file import load_solution
from heteroplace.model.cluster import Cluster
from heteroplace.model.digests import first_difference
from heteroplace.model.graph import TaskGraph
from heteroplace.model.implementations import MAKERS, maker_of, makers_of
from heteroplace.model.plan import Plan
from heteroplace.native.compiled_file import read_manifest


@dataclass(frozen=True)
class SavedPlan:
    """A plan as a file holds it."""

    source: str
    """Path of the file, for messages."""
    value: object
    """JSON form of the plan."""
    graph: TaskGraph | None
    """What it was made for; None: the file does not hold it."""
    makers: tuple[str, ...] = ()
    """Whose kernels it runs beside ours, of MAKERS."""

    def plan_for(self, graph: TaskGraph, cluster: Cluster) -> Plan:
        """Return the plan with the ids of `graph` and `cluster`.

        Raises
        ------
        PlanError
            It is for another graph: the first difference is named; or it names a device, memory or
            link that `cluster` does not have.
        """
        difference = "" if self.graph is None else first_difference(self.graph, graph)
        if difference:
            raise PlanError(
                f"{self.source}: the plan's graph {difference}; give a plan of this graph, or "
                f"solve again without plan_in"
            )
        return replayed_plan(self.value, graph, cluster, self.source)


def read_plan_in(path: str | os.PathLike[str]) -> SavedPlan:
    """Read a plan, a solution or a compiled model.

    Raises
    ------
    HeteroPlaceError
        The file cannot be read, is of another kind, or is damaged.
    """
    source = os.fspath(path)
    kind, value = read_known_file(path)
    if kind == "plan":
        return SavedPlan(source, value, None, _makers_in(value))
    if kind not in ("solution", "model"):
        raise PlanError(
            f"{source}: expected a plan, a solution or a compiled model, got a {kind} file"
        )
    solution = load_solution(path) if kind == "solution" else read_manifest(path).solution
    saved = plan_to_json(solution.plan, solution.graph, solution.cluster)
    return SavedPlan(source, saved, solution.graph, makers_of(solution.cluster.devices))


def _makers_in(value: object) -> tuple[str, ...]:
    """The makers that the devices of a plan's steps name; what is wrong with it is told later."""
    steps = value.get("steps") if isinstance(value, dict) else None
    names = {
        str(step.get("on"))
        for step in (steps if isinstance(steps, list) else [])
        if isinstance(step, dict)
    }
    makers = {maker_of(name) for name in names}
    return tuple(maker for maker in MAKERS if maker in makers)
