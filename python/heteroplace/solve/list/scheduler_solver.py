"""What the list schedulers have in common as solvers: native plan -> SolveResult.

They are run as published: nobody mends a plan that does not fit, and a plan that does not fit is
not returned. `heft` and `auto` mend.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar

from heteroplace.errors import SolverLimitError
from heteroplace.model.plan import Plan
from heteroplace.native.core_problem import NativePlan
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.feasibility import check_possible, overcommitted_error
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report


class ListSolver(ABC):
    """One plan, deterministic; a budget only ends it."""

    name: ClassVar[str]

    @abstractmethod
    def native_plan(self, problem: Problem, deadline: Deadline = NEVER) -> NativePlan:
        """Return the plan; it may overflow memories (`violation` > 0).

        Raises
        ------
        SolverLimitError
            The deadline passed before all tasks were placed.
        """

    def repaired(self, problem: Problem, plan: NativePlan, time_limit_s: float) -> NativePlan:
        """Return a plan that fits; InfeasibleError names the bytes that each memory lacks."""
        raise overcommitted_error(problem, self.name, plan)

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        deadline = Deadline.after(options.time_limit_s, begin)
        check_possible(problem)
        try:
            result_plan = self.native_plan(problem, deadline)
        except SolverLimitError as err:
            raise SolverLimitError(
                f"{self.name} had not placed all {len(problem.graph.tasks)} tasks on "
                f"{len(problem.cluster.devices)} devices after {options.time_limit_s} s; give it "
                f"more time, or take solver 'auto', which has a plan sooner"
            ) from err
        if result_plan.violation:
            result_plan = self.repaired(problem, result_plan, deadline.left_s())

        def plan() -> Plan:
            return problem.native.plan(result_plan.steps, self.name)

        report(options, self.name, begin, result_plan.makespan_ns, plan=plan)
        bound = lower_bound(problem, time_limit_s=deadline.left_s()).ns
        wall_s = time.perf_counter() - begin
        return make_result(problem, plan(), bound, self.name, wall_s, native_plan=result_plan)
