"""bGreedy (DiviML, section V): in topological order, the split that keeps the latency least.

The latency is that of all that is scheduled so far; ties, which are many, by the finish of the op,
then by the sum of the finishes of its batches.
"""

from __future__ import annotations

from heteroplace.solve.batched.list_solver import solve_batched
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult


class BatchedGreedySolver:
    """Least latency so far, task by task in topological order."""

    name = "bgreedy"
    takes_items = True

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve` and `solve_batched`. The plan serves `options.items`."""
        return solve_batched(problem, options, self.name, "latency")
