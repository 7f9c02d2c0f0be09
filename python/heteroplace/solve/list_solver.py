"""What the list schedulers of the literature have in common as solvers: draft -> SolveResult.

They are run as published: nobody mends a plan that does not fit, and a plan that does not fit is
not returned. `HeftSolver` and `AutoSolver` mend.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from heteroplace.errors import InfeasibleError
from heteroplace.model.plan import Plan
from heteroplace.model.units import format_bytes
from heteroplace.native.schedule import Draft
from heteroplace.solve.base import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.heft import check_possible
from heteroplace.solve.overflow import excess_bytes


class ListSolver(ABC):
    """A scheduler that makes one draft; deterministic, and without a budget."""

    name = ""

    @abstractmethod
    def draft(self, problem: Problem) -> Draft:
        """Return the schedule; it may overflow memories (`violation` > 0)."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`; InfeasibleError names the bytes that each memory lacks."""
        begin = time.perf_counter()
        check_possible(problem)
        draft = self.draft(problem)
        if draft.violation:
            raise overcommitted_error(problem, self.name, draft)

        def plan() -> Plan:
            return problem.native.plan(draft.steps, self.name)

        report(options, self.name, begin, draft.makespan_ns, plan=plan)
        bound = lower_bound(problem).ns
        wall_s = time.perf_counter() - begin
        return make_result(problem, plan(), bound, self.name, wall_s, draft=draft)


def overcommitted_error(problem: Problem, solver: str, draft: Draft) -> InfeasibleError:
    """Return the error for a draft that no machine can run."""
    sizes = {memory.name: memory.bytes for memory in problem.cluster.memories}
    short = [
        f"memory {name!r} has {format_bytes(sizes[name])} and lacks {format_bytes(excess)}"
        for name, excess in excess_bytes(problem, draft).items()
    ]
    faults = "; ".join(short) or "a tensor cannot reach a memory where it is read"
    return InfeasibleError(
        f"solver {solver!r} found no plan that fits for graph {problem.graph.name!r} on cluster "
        f"{problem.cluster.name!r}: {faults}. Try solver 'heft' or 'auto', which mend such plans, "
        f"or give these memories more room."
    )
