"""Search, then large neighbourhood search: the solver `lns`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from heteroplace.solve.feasibility import no_placement_error
from heteroplace.solve.lns.engine import run_lns
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result
from heteroplace.solve.search.initial_solutions import initial_s
from heteroplace.solve.search.search_solver import begin_solve, run_search, solve_deadline

_LARGE = 200
"""Tasks."""


class LnsSolver:
    """Improves the plan of the search by exact solutions of its neighbourhoods."""

    name = "lns"
    engines: ClassVar = {"latency": ("cpsat",)}

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`; `candidates` of the result say what each part achieved."""
        begin = time.perf_counter()
        initial, bound = begin_solve(problem, options, begin)
        native_plans = initial.native_plans(initial_s(problem, options))
        deadline = solve_deadline(problem, options, begin)
        share = _search_share(problem)
        end = run_search(
            problem,
            [native_plan for _, native_plan in native_plans] or [initial.first()[1]],
            _with_iterations(options, share),
            deadline.part(share, options.iterations),
            bound,
        )
        if end.native_plan.violation:
            raise no_placement_error(problem)
        tried: list[tuple[str, int | None, str]] = [
            ("search", end.makespan_ns, f"{end.num_evaluations} schedules tried")
        ]
        native_plan, bound, interrupted = end.native_plan, end.bound_ns, end.was_interrupted
        if not interrupted and end.makespan_ns > bound:
            rest = _with_iterations(options, 1 - share)
            end_of_search = run_lns(problem, native_plan, rest, deadline, bound, end.prices)
            tried.append(("lns", end_of_search.makespan_ns, end_of_search.note))
            native_plan, interrupted = end_of_search.native_plan, end_of_search.was_interrupted
            if end_of_search.is_optimal:
                bound = end_of_search.makespan_ns
        else:
            reason = "interrupted" if interrupted else "the plan equals its bound"
            tried.append(("lns", None, f"left out: {reason}"))
        plan = problem.native.plan(native_plan.steps, f"lns seed {options.seed}")
        return make_result(
            problem,
            plan,
            bound,
            self.name,
            time.perf_counter() - begin,
            was_interrupted=interrupted,
            candidates=tuple(tried),
            native_plan=native_plan,
        )


def _search_share(problem: Problem) -> float:
    """Part of the time that the search has: it goes on improving large graphs for long."""
    return 0.5 if len(problem.graph.tasks) <= _LARGE else 0.8


def _with_iterations(options: SolveOptions, share: float) -> SolveOptions:
    """Options with a part of the deterministic budget, if there is one."""
    if options.iterations is None:
        return options
    return replace(options, iterations=int(options.iterations * share))
