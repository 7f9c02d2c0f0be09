"""ETF and m-ETF: of all ready tasks and devices the earliest pair goes next.

C++: src/list/engine/ready_queue.cc (list::PlaceEarliest). Hwang, Chow, Anger, Lee, "Scheduling
Precedence Graphs in Systems with Interprocessor Communication Times", 1989 (10.1137/0218016), on
unrelated devices; Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC
2020, section 3 (10.1145/3419111.3421302).
"""

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import etf, m_etf
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem


class EtfSolver(ListSolver):
    """Of all ready tasks and devices the pair that finishes first goes next."""

    name = "etf"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return etf(problem.native, None, deadline.left_s())


class MEtfSolver(ListSolver):
    """Of all ready tasks and devices with room the pair that starts first goes next."""

    name = "m-etf"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return m_etf(problem.native, deadline.left_s())
