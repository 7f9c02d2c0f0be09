"""ETF (Hwang, Chow, Anger, Lee 1989) on unrelated devices. See `src/list/etf.h`."""

from __future__ import annotations

from heteroplace.native.list import etf
from heteroplace.native.problem import NativePlan
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class EtfSolver(ListSolver):
    """Of all ready tasks and devices the pair that finishes first goes next."""

    name = "etf"

    def native_plan(self, problem: Problem) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return etf(problem.native)
