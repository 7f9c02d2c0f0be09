"""The search of the core over placement and order, with the bounds it finds on the way.

C++: src/search/search.cc (search::Search). Column generation over the modules of the graph, with
annealing as pricing. The annealing is that of DiviML (section V, arXiv 2308.00127) with moves of
the order, chains and branches, which their random walk on the mapping lacks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.native.problem import NativePlan
from heteroplace.native.search import search_plans
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible, no_placement_error
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.search.initial_solutions import INITIAL_SHARE, InitialSolutions

PATIENCE_PER_TASK = 20_000
"""`auto` ends the search after so many evaluations per task without a gain of 0.05 %; it has better
things to do then."""
_LONG_PATIENCE = 10
"""The solver `search` itself has so many times as much: late gains are rare, not impossible."""
MAX_TASKS_TO_BOUND = 10_000
"""Above, the search's own bounds have to do: others would take as long as its first rounds."""
_LEAST_S = 0.01
PLAN_S_PER_TASK = 4e-6
"""What turning the result into a plan takes."""


@dataclass(frozen=True)
class SearchEnd:
    """What a search from given plans returned."""

    native_plan: NativePlan
    """It may overflow memories: `violation`."""
    makespan_ns: int
    """Simulated."""
    num_evaluations: int
    was_interrupted: bool
    bound_ns: int
    """The given bound, or a better one that the search found."""
    prices: tuple[float, ...]
    """For each memory what a byte is worth in its plan, in ns."""


class SearchSolver:
    """Improves the plans of all list schedulers."""

    name = "search"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        deadline = solve_deadline(problem, options, begin)
        initial, bound = begin_solve(problem, options, begin)
        plans = [plan for _, plan in initial.native_plans(INITIAL_SHARE * options.time_limit_s)]
        patience = _LONG_PATIENCE * PATIENCE_PER_TASK
        end = run_search(problem, plans or [initial.first()[1]], options, deadline, bound, patience)
        if end.native_plan.violation:
            raise no_placement_error(problem)
        plan = problem.native.plan(end.native_plan.steps, f"search seed {options.seed}")
        wall = time.perf_counter() - begin
        return make_result(
            problem,
            plan,
            end.bound_ns,
            self.name,
            wall,
            was_interrupted=end.was_interrupted,
            native_plan=end.native_plan,
        )


def solve_deadline(problem: Problem, options: SolveOptions, begin: float) -> Deadline:
    """Return when solving must end so that the plan is made of it in time; `begin`: it began."""
    deadline = Deadline.after(options.time_limit_s, begin)
    return deadline.earlier(PLAN_S_PER_TASK * len(problem.graph.tasks))


def begin_solve(
    problem: Problem, options: SolveOptions, begin: float
) -> tuple[InitialSolutions, int]:
    """Report a plan at once, since all else takes longer on a large graph, then find a bound.

    Parameters
    ----------
    begin
        When the solve began.

    Returns
    -------
    initial, bound_ns
        Plans to go on from, and a proven bound; 0 above MAX_TASKS_TO_BOUND.

    Raises
    ------
    InfeasibleError
        Some task may run nowhere.
    """
    check_possible(problem)
    initial = InitialSolutions(problem, options.time_limit_s)
    name, first = initial.first()
    if first.violation == 0:
        report(
            options,
            name,
            begin,
            first.makespan_ns,
            plan=lambda: problem.native.plan(first.steps, name),
        )
    is_bounded = len(problem.graph.tasks) <= MAX_TASKS_TO_BOUND
    if not is_bounded:
        return initial, 0
    return initial, lower_bound(problem, time_limit_s=INITIAL_SHARE * options.time_limit_s).ns


def run_search(
    problem: Problem,
    initial: Sequence[NativePlan],
    options: SolveOptions,
    deadline: Deadline,
    bound_ns: int,
    patience_per_task: int = PATIENCE_PER_TASK,
) -> SearchEnd:
    """Search from `initial`; the result is never longer than the shortest of those that fit."""
    native = problem.native
    begin = time.perf_counter()
    # The search schedules without gaps on units, so it may start behind an insertion scheduler.
    known = [
        (simulate_plan(native, plan).makespan_ns, plan) for plan in initial if not plan.violation
    ]

    def progress(_evaluations: int, best_ns: int, found_bound_ns: int) -> None:
        report(options, "search", begin, best_ns, found_bound_ns)

    found = search_plans(
        native,
        initial,
        max_evaluations=options.iterations,
        time_limit_s=max(_LEAST_S, deadline.left_s()),
        seed=options.seed,
        bound_ns=bound_ns,
        patience=patience_per_task * max(1, len(problem.graph.tasks)),
        threads=options.threads,
        progress=None if options.progress is None else progress,
    )
    if found.native_plan.violation:  # So did all before; there is nothing that could be simulated.
        makespan_ns, best = found.native_plan.makespan_ns, found.native_plan
    else:
        searched = (simulate_plan(native, found.native_plan).makespan_ns, found.native_plan)
        makespan_ns, best = min([searched, *known], key=lambda timed: timed[0])
    return SearchEnd(
        best,
        makespan_ns,
        found.num_evaluations,
        found.was_interrupted,
        found.bound_ns,
        found.prices,
    )
