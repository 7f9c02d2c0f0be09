"""ETF: of all ready tasks and devices the pair that finishes first goes next.

C++: src/list/etf.cc (list::Etf). Hwang, Chow, Anger, Lee, "Scheduling Precedence Graphs in Systems
with Interprocessor Communication Times", 1989 (10.1137/0218016), on unrelated devices.
"""

from heteroplace.native.list import etf
from heteroplace.native.problem import NativePlan
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class EtfSolver(ListSolver):
    """Of all ready tasks and devices the pair that finishes first goes next."""

    name = "etf"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return etf(problem.native, None, deadline.left_s())
