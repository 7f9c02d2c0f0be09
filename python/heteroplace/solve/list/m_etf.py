"""m-ETF (Jeon et al., "Baechi", SoCC 2020, section 3). See `src/sched/m_etf.h`."""

from __future__ import annotations

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class MEtfSolver(ListSolver):
    """Of all ready tasks and devices with room the pair that starts first goes next."""

    name = "m-etf"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return baselines.m_etf(problem.native)
