"""ETF (Hwang, Chow, Anger, Lee 1989) on unrelated devices. See `src/sched/etf.h`."""

from __future__ import annotations

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class EtfSolver(ListSolver):
    """Of all ready tasks and devices the pair that finishes first goes next."""

    name = "etf"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return baselines.etf(problem.native)
