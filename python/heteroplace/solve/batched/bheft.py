"""bHEFT (DiviML, section V): HEFT whose ops take a split of the items instead of one device.

Ranks use the mean over devices of the time of all items at the best batch size, and mean transfers
of all items. Each op, in order of rank, takes the composition whose last batch finishes first.
"""

from __future__ import annotations

from heteroplace.solve.batched.list_solver import solve_batched
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult


class BatchedHeftSolver:
    """Earliest finish of the task's last batch, by upward rank."""

    name = "bheft"
    takes_items = True

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve` and `solve_batched`. The plan serves `options.items`."""
        return solve_batched(problem, options, self.name, "finish")
