"""Order-Place (Celeritas, section 5.3): fill one memory after the other in CPD-TOPO order.

Neighbours stay together, so few tensors are copied: where memory is tight this fits when HEFT,
which spreads the tasks, runs out of room for the copies. Also a start of the search. For Celeritas
proper the problem is that of a graph coarsened by its fusion. See `src/sched/order_place.h`.
"""

from __future__ import annotations

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class OrderPlaceSolver(ListSolver):
    """Fills one memory after the other, fastest first."""

    name = "order-place"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return order_place(problem)


def order_place(problem: Problem) -> Draft:
    """Return the plan that fills the memories, fastest first; it may overflow (`violation`).

    Complexity: O((tasks + reads) * devices), and the sorting of CPD-TOPO.
    """
    return baselines.order_place(problem.native, baselines.critical_path_order(problem.native))
