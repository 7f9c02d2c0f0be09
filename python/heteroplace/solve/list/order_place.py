"""Order-Place: memories are filled one after the other, in CPD-TOPO order.

C++: src/list/order_place.cc (list::OrderPlace). "Celeritas: Fast Optimizer for Large Dataflow
Graphs", section 5.3 (arXiv 2208.00184). Neighbours stay together, so few tensors are copied: where
memory is tight this fits when HEFT, which spreads the tasks, runs out of room for the copies. For
Celeritas proper the problem is that of a graph coarsened by its fusion.
"""

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.list import critical_path_order, order_place
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.list.scheduler_solver import ListSolver
from heteroplace.solve.problem import Problem


class OrderPlaceSolver(ListSolver):
    """Fills one memory after the other, fastest first."""

    name = "order-place"

    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return order_place(problem.native, critical_path_order(problem.native))
