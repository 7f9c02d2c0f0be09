"""A plan whose tasks disturb each other -> a plan that loses less: solved again, beside it.

Solvers minimise fixed times (`heteroplace.simulate.disturbed_costs`). Each round takes the times
that tasks have beside the best plan so far, and solves with them. `heteroplace.simulate.expect`
judges the plan of a round, so the expected run time never becomes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heteroplace.errors import SolverLimitError
from heteroplace.model.plan import Plan
from heteroplace.model.solution import RunTime
from heteroplace.simulate.disturbed_costs import costs_beside
from heteroplace.simulate.interference import Interference
from heteroplace.solve.objective import num_devices
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result
from heteroplace.solve.solvers import get_solver

MAX_ROUNDS = 2
_LEAST_LOSS = 0.03
"""Of the plan's work. Where tasks lost 1 to 2 %, solving again gained 0.1 to 0.4 %."""


def solve_beside(
    problem: Problem,
    options: SolveOptions,
    interference: Interference,
    solver: str,
    result: SolveResult,
    expected: RunTime,
    run_time_of: Callable[[Plan], RunTime],
) -> tuple[SolveResult, RunTime]:
    """Return `result` and its expected run time, or what is expected to run in less.

    Parameters
    ----------
    options
        Its time is that of all rounds.
    result
        Of the same solver, by costs alone. What is returned has its bound, and a candidate for each
        round.
    expected
        What `run_time_of` says of its plan.
    """
    best = result
    for number in range(1, MAX_ROUNDS + 1):
        if best.status == "interrupted" or num_devices(problem, best.plan) == 1:
            break
        costs, lost_ratio = costs_beside(
            problem.graph, problem.cluster, problem.costs, best.plan, interference
        )
        if lost_ratio < _LEAST_LOSS:
            break
        limits = replace(options, time_limit_s=options.time_limit_s / MAX_ROUNDS)
        try:
            again = get_solver(solver).solve(replace(problem, costs=costs), limits)
        except SolverLimitError:  # the first plan needed more time
            break
        run_time = run_time_of(again.plan)
        is_better = run_time.expected_ns < expected.expected_ns
        note = f"expected {run_time.expected_ns} ns, the plan above {expected.expected_ns} ns"
        tried = make_result(
            problem,
            again.plan,
            result.bound_ns,
            result.solver,
            best.wall_s + again.wall_s,
            was_interrupted="interrupted" in (best.status, again.status),
        )
        candidate = f"{again.solver}, beside itself {number}", tried.objective_ns, note
        best = replace(tried if is_better else best, candidates=(*best.candidates, candidate))
        if not is_better:
            break
        expected = run_time
    return best, expected
