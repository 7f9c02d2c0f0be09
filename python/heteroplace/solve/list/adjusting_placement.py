"""Adjusting Placement (Celeritas, section 5.3, algorithm 2). See `src/list/adjusting_placement.h`.

The paper returns a best-effort plan when all devices are full. `adjusting_placement` does too, with
the excess of each memory; the solver, whose plans can all be run, raises InfeasibleError instead.
Celeritas claims that no step of it is worse than Order-Place. That holds step by step only, so a
user of both takes the better plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from heteroplace.native.list import adjusting_placement as native_adjusting_placement
from heteroplace.native.list import critical_path_order
from heteroplace.native.problem import NativePlan
from heteroplace.solve.feasibility import excess_bytes
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


@dataclass(frozen=True)
class AdjustedPlan:
    """A schedule that may need more memory than there is."""

    native_plan: NativePlan
    excess_bytes: dict[str, int]
    """Bytes that memories lack, by name; empty: it fits."""

    @property
    def is_overcommitted(self) -> bool:
        """Whether some memory lacks room."""
        return bool(self.excess_bytes)


class AdjustingPlacementSolver(ListSolver):
    """In CPD-TOPO order, each task where the one before is, unless another device pays."""

    name = "adjusting-placement"

    def native_plan(self, problem: Problem) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return adjusting_placement(problem).native_plan


def adjusting_placement(problem: Problem) -> AdjustedPlan:
    """Return the plan of the algorithm, flagged if it overcommits memories.

    Complexity: O((tasks + reads) * devices * log), and the sorting of CPD-TOPO.
    """
    native_plan = native_adjusting_placement(problem.native, critical_path_order(problem.native))
    return AdjustedPlan(
        native_plan, excess_bytes(problem, native_plan) if native_plan.violation else {}
    )
