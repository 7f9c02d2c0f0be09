"""m-ETF (Jeon et al., "Baechi", SoCC 2020, section 3). See `src/list/m_etf.h`."""

from __future__ import annotations

from heteroplace.native.list import plan_by
from heteroplace.native.problem import NativePlan
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class MEtfSolver(ListSolver):
    """Of all ready tasks and devices with room the pair that starts first goes next."""

    name = "m-etf"

    def native_plan(self, problem: Problem) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return plan_by(problem.native, "m_etf")
