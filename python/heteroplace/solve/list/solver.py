"""What the list schedulers of the literature have in common as solvers: plan -> SolveResult.

They are run as published: nobody mends a plan that does not fit, and a plan that does not fit is
not returned. `HeftSolver` and `AutoSolver` mend.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from heteroplace.model.plan import Plan
from heteroplace.native.problem import NativePlan
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.feasibility import check_possible, overcommitted_error
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report


class ListSolver(ABC):
    """A scheduler that makes one plan; deterministic, and without a budget."""

    name = ""

    @abstractmethod
    def native_plan(self, problem: Problem) -> NativePlan:
        """Return the schedule; it may overflow memories (`violation` > 0)."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`; InfeasibleError names the bytes that each memory lacks."""
        begin = time.perf_counter()
        check_possible(problem)
        native_plan = self.native_plan(problem)
        if native_plan.violation:
            raise overcommitted_error(problem, self.name, native_plan)

        def plan() -> Plan:
            return problem.native.plan(native_plan.steps, self.name)

        report(options, self.name, begin, native_plan.makespan_ns, plan=plan)
        bound = lower_bound(problem).ns
        wall_s = time.perf_counter() - begin
        return make_result(problem, plan(), bound, self.name, wall_s, native_plan=native_plan)
