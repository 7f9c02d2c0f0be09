"""The search of the core over placement and order, with the bounds it finds on the way.

C++: src/search/search.cc (search::PlanSearch). Column generation over the modules of the graph,
with annealing as pricing. The annealing is that of DiviML (section V, arXiv 2308.00127) with moves
of the order, chains and branches, which their random walk on the mapping lacks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from heteroplace.native.core_problem import NativePlan
from heteroplace.native.core_search import PlanSearch, Stall
from heteroplace.native.simulate import simulate_plan
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.feasibility import check_possible, no_placement_error
from heteroplace.solve.problem import Problem, SolveOptions, SolveResult, make_result, report
from heteroplace.solve.search.initial_solutions import INITIAL_SHARE, InitialSolutions, initial_s

PATIENCE_PER_TASK = 20_000
"""A search that others go on from ends after so many evaluations per task without a gain of 0.05 %;
they have better things to do then."""
LONG_PATIENCE_PER_TASK = 10 * PATIENCE_PER_TASK
"""And one that nothing follows: late gains are rare, not impossible."""
MAX_TASKS_TO_BOUND = 10_000
"""Above, the search's own bounds have to do: others would take as long as its first rounds."""
_MIN_S = 0.01
PLAN_S_PER_TASK = 4e-6
"""What turning the result into a plan takes."""
PLAN_S_PER_COPY = 1e-5
"""And its copies, of which a task has several where devices are many."""


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
    can_go_on: bool
    """Only the turn has ended."""
    stalled_s: float
    """Seconds that it searched since its last gain."""


class SearchRun:
    """A search from given plans, in one turn or several. Not thread-safe."""

    def __init__(
        self,
        problem: Problem,
        initial: Sequence[NativePlan],
        options: SolveOptions,
        patience_per_task: int = PATIENCE_PER_TASK,
        best_known: tuple[int, NativePlan] | None = None,
    ) -> None:
        """See `run_search`; `best_known` is the shortest of `initial` that fits, with its simulated
        makespan in ns, where the caller has simulated all of them."""
        self._problem = problem
        self._options = options
        self._known: list[tuple[int, NativePlan]] = []
        if best_known is None:
            self._note(initial)
        else:
            self._known = [best_known]
        self._search = PlanSearch(
            problem.native,
            initial,
            max_evaluations=options.iterations,
            seed=options.seed,
            patience=patience_per_task * max(1, len(problem.graph.tasks)),
            threads=options.threads,
        )

    def run(
        self,
        deadline: Deadline,
        bound_ns: int,
        stall: Stall | None = None,
        plans: Sequence[NativePlan] = (),
    ) -> SearchEnd:
        """Search on; the result is never longer than any plan that it was given and that fits.

        Parameters
        ----------
        stall
            When the turn ends before the deadline.
        plans
            Found elsewhere since the turn before.
        """
        options, begin = self._options, time.perf_counter()
        self._note(plans)

        def progress(_evaluations: int, best_ns: int, found_bound_ns: int) -> None:
            report(options, "search", begin, best_ns, found_bound_ns)

        end = self._search.run(
            max(_MIN_S, deadline.left_s()),
            bound_ns=bound_ns,
            stall=stall,
            plans=plans,
            progress=None if options.progress is None else progress,
        )
        if end.native_plan.violation and not self._known:  # There is nothing to be simulated.
            makespan_ns, best = end.native_plan.makespan_ns, end.native_plan
        else:
            self._note([end.native_plan])
            makespan_ns, best = self._known[0]
        return SearchEnd(
            best,
            makespan_ns,
            end.num_evaluations,
            end.was_interrupted,
            end.bound_ns,
            end.prices,
            end.can_go_on,
            end.stalled_s,
        )

    def knows(self, plan: NativePlan) -> bool:
        """Say whether it was given the plan, found it, or has a shorter one."""
        if plan.violation or not self._known:
            return False
        return self._known[0][0] <= simulate_plan(self._problem.native, plan).makespan_ns

    def _note(self, plans: Sequence[NativePlan]) -> None:
        """Keep the shortest plan that fits.

        The search schedules without gaps on units, so it may be behind an insertion scheduler, and
        what fits by lifetime there may lack memory as the search has it.
        """
        native = self._problem.native
        fitting = [plan for plan in plans if not plan.violation]
        timed = [(simulate_plan(native, plan).makespan_ns, plan) for plan in fitting]
        # Of equal ones the latest.
        self._known = sorted([*timed, *self._known], key=lambda one: one[0])[:1]


class SearchSolver:
    """Improves the plans of all list schedulers."""

    name = "search"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`."""
        begin = time.perf_counter()
        deadline = solve_deadline(problem, options, begin)
        initial, bound = begin_solve(problem, options, begin)
        deadline = before_copies(problem, deadline, initial.first()[1])
        starting_s = initial_s(problem, options)
        plans = [plan for _, plan in initial.native_plans(starting_s)]
        plans = plans or [initial.first()[1]]
        end = run_search(problem, plans, options, deadline, bound, LONG_PATIENCE_PER_TASK)
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


def before_copies(problem: Problem, deadline: Deadline, plan: NativePlan) -> Deadline:
    """Return the deadline with room to make the steps of so many copies as a plan has."""
    num_copies = max(0, len(plan.rows) - len(problem.graph.tasks))
    return deadline.earlier(PLAN_S_PER_COPY * num_copies)


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
    return initial, lower_bound(problem, time_limit_s=options.part_s(INITIAL_SHARE)).ns


def run_search(
    problem: Problem,
    initial: Sequence[NativePlan],
    options: SolveOptions,
    deadline: Deadline,
    bound_ns: int,
    patience_per_task: int = PATIENCE_PER_TASK,
) -> SearchEnd:
    """Search from `initial`, in one turn."""
    return SearchRun(problem, initial, options, patience_per_task).run(deadline, bound_ns)
