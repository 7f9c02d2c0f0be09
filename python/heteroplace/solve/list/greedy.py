"""Greedy, a baseline of DiviML (section V). See `src/list/greedy.h`."""

from __future__ import annotations

from heteroplace.native.list import plan_by
from heteroplace.native.problem import NativePlan
from heteroplace.solve.list.solver import ListSolver
from heteroplace.solve.problem import Problem


class GreedySolver(ListSolver):
    """In topological order, each task where the latency so far stays least."""

    name = "greedy"

    def native_plan(self, problem: Problem) -> NativePlan:
        """See `ListSolver.native_plan`."""
        return plan_by(problem.native, "greedy")
