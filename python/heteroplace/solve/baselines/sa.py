"""Simulated annealing over the mapping, the baseline of DiviML (section V).

Its schedule is not given there; ours: the temperature begins at 0.1 of the first makespan and falls
geometrically to 1e-4 of that over the budget (evaluations if they are limited, else seconds), and
a move gives one random task another random device. The solver `search` moves the order too and is
better; this one is here to be compared with.
"""

from __future__ import annotations

from heteroplace.solve.baselines.mapping_walk import walk_mappings
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult


class SaSolver:
    """Simulated annealing from the MET mapping, in breadth-first order."""

    name = "sa"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. The budget is `iterations`, the mappings tried, or the time."""
        return walk_mappings(problem, options, self.name, "annealing")
