"""m-TOPO (Jeon et al., "Baechi", SoCC 2020, section 3), with both caps. See `src/sched/m_topo.h`.

Baechi caps each device at the mean load plus the largest task; the comparison of Celeritas fills
devices to their limit.
"""

from __future__ import annotations

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class MTopoSolver(ListSolver):
    """Fills one memory after the other to its limit, in breadth-first order."""

    name = "m-topo"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return baselines.m_topo(problem.native, is_uniform=False)


class UniformMTopoSolver(ListSolver):
    """Fills all memories to about the same amount, in breadth-first order."""

    name = "m-topo-uniform"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return baselines.m_topo(problem.native, is_uniform=True)
