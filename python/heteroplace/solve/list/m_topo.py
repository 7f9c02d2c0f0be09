"""m-TOPO: memories are filled one after the other, in breadth-first order; with both caps.

C++: src/list/m_topo.cc (list::MTopo). Jeon et al., "Baechi: Fast Device Placement of Machine
Learning Graphs", SoCC 2020, section 3 (10.1145/3419111.3421302), caps each device at the mean load
plus the largest task; the comparison of Celeritas fills devices to their limit.
"""

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import m_topo
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem


class MTopoSolver(ListSolver):
    """Fills one memory after the other to its limit, in breadth-first order."""

    name = "m-topo"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return m_topo(problem.native, is_uniform=False)


class UniformMTopoSolver(ListSolver):
    """Fills all memories to about the same amount, in breadth-first order."""

    name = "m-topo-uniform"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return m_topo(problem.native, is_uniform=True)
