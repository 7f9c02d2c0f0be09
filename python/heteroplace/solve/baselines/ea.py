"""The biased (1+1) evolutionary algorithm over the mapping, the best heuristic of DiviML (V).

"Biased": it begins with MET, each op on its fastest device. A step gives each position of the
string, with probability 1 / positions, a random device, and keeps the result if it is not worse.
Steps that change nothing are drawn again and not counted.
"""

from __future__ import annotations

from heteroplace.solve.baselines.mapping_walk import walk_mappings
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult


class EaSolver:
    """(1+1) EA from the MET mapping, in breadth-first order."""

    name = "ea"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. The budget is `iterations`, the mappings tried, or the time."""
        return walk_mappings(problem, options, self.name, "evolution")
