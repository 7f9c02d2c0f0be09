"""bMET (DiviML, section V): each op in the batch and on the device of least run time per item.

If that batch does not hold all items, the rest go to the next best pair of those with which the
sizes add up, and so on; ties: fewer batches. Memory goes first: a composition that overflows is
passed over. The batches are list-scheduled by upward rank.
"""

from __future__ import annotations

from heteroplace.solve.batched.list_solver import solve_batched
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult


class BatchedMetSolver:
    """Least run time per item, for each task by itself."""

    name = "bmet"
    takes_items = True

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve` and `solve_batched`. The plan serves `options.items`."""
        return solve_batched(problem, options, self.name, "fastest")
