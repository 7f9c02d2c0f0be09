"""Greedy, a baseline of DiviML (section V). See `src/sched/greedy.h`."""

from __future__ import annotations

from heteroplace.native import baselines
from heteroplace.native.schedule import Draft
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class GreedySolver(ListSolver):
    """In topological order, each task where the latency so far stays least."""

    name = "greedy"

    def draft(self, problem: Problem) -> Draft:
        """See `ListSolver.draft`."""
        return baselines.greedy(problem.native)
