"""Adjusting Placement: in CPD-TOPO order each task stays where the one before is, unless it pays.

C++: src/list/adjusting_placement.cc (list::AdjustingPlacement). "Celeritas: Fast Optimizer for
Large Dataflow Graphs", section 5.3, algorithm 2 (arXiv 2208.00184), which returns a best-effort
plan when all devices are full. So does `native_plan`; the solver, whose plans can all be run,
raises InfeasibleError instead. Celeritas claims that no step of it is worse than Order-Place. That
holds step by step only, so a user of both takes the better plan.
"""

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import adjusting_placement, critical_path_order
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem


class AdjustingPlacementSolver(ListSolver):
    """In CPD-TOPO order, each task where the one before is, unless another device pays."""

    name = "adjusting-placement"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        order = critical_path_order(problem.native)
        return adjusting_placement(problem.native, order, deadline.left_s())
