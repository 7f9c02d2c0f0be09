"""MET (minimum execution time, Braun et al. 2001), a baseline of DiviML. See `src/list/met.h`."""

from __future__ import annotations

from heteroplace.native.list import plan_by
from heteroplace.native.problem import NativePlan
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class MetSolver(ListSolver):
    """Each task on the device that runs it fastest; memory permitting."""

    name = "met"

    def native_plan(self, problem: Problem) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return plan_by(problem.native, "met")
