"""MET (minimum execution time, Braun et al. 2001), a baseline of DiviML. See `src/sched/met.h`."""

from __future__ import annotations

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class MetSolver(ListSolver):
    """Each task on the device that runs it fastest; memory permitting."""

    name = "met"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return baselines.met(problem.native)
