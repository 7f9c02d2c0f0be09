"""The seam `ObjectiveSolver`: throughput, or several items in one run -> a plan and a bound.

The core places one item for its latency. A part registers what solves for all else in the group
`heteroplace.objectives`: "throughput", and "items" for plans of several items.
"""

from __future__ import annotations

from typing import Protocol

from heteroplace.errors import MissingPackageError
from heteroplace.model.plan import Plan
from heteroplace.registry import load_plugin, plugins
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.problem import ITEMS, OBJECTIVES, Problem, SolveOptions, SolveResult

_SEAM = "objectives"


class ObjectiveSolver(Protocol):
    """What solves for one objective, and bounds it."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """Return the plan of the solver `auto`; see `Solver.solve`."""

    def bound_ns(
        self, problem: Problem, plan: Plan, known_ns: int, deadline: Deadline, *, is_usual: bool
    ) -> int:
        """Return a value of the objective that no plan is below; at once, or by the deadline.

        Parameters
        ----------
        plan
            The bound is for plans like it: of as many items.
        known_ns
            The objective of `plan`: a bound that reaches it need not be improved.
        is_usual
            All copies of the plan leave their tensor's home by the cluster's route.
        """


def added_objective(objective: str, items: int) -> ObjectiveSolver | None:
    """Return what solves for an objective and a number of items; None: the core, for one's latency.

    Raises
    ------
    MissingPackageError
        No installed package does.
    """
    if items == 1 and objective == OBJECTIVES[0]:
        return None
    name = ITEMS if items > 1 else objective
    if name not in plugins(_SEAM):
        what = f"a plan for {items} items" if items > 1 else f"the objective {objective!r}"
        raise MissingPackageError(
            f"{what} needs a solver, and no installed package registers {name!r} in the group "
            f"'heteroplace.{_SEAM}'; install heteroplace with its part `throughput`"
        )
    solver: ObjectiveSolver = load_plugin(_SEAM, name)
    return solver
