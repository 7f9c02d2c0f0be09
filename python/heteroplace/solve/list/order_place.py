"""Order-Place (Celeritas, section 5.3): fill one memory after the other in CPD-TOPO order.

Neighbours stay together, so few tensors are copied: where memory is tight this fits when HEFT,
which spreads the tasks, runs out of room for the copies. Also a start of the search. For Celeritas
proper the problem is that of a graph coarsened by its fusion. See `src/list/order_place.h`.
"""

from __future__ import annotations

from heteroplace.native.list import critical_path_order
from heteroplace.native.list import order_place as native_order_place
from heteroplace.native.problem import NativePlan
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class OrderPlaceSolver(ListSolver):
    """Fills one memory after the other, fastest first."""

    name = "order-place"

    def native_plan(self, problem: Problem) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return order_place(problem)


def order_place(problem: Problem) -> NativePlan:
    """Return the plan that fills the memories, fastest first; it may overflow (`violation`).

    Complexity: O((tasks + reads) * devices), and the sorting of CPD-TOPO.
    """
    return native_order_place(problem.native, critical_path_order(problem.native))
