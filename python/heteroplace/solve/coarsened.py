"""Problem, option `coarsening` and a solver -> a plan of the tasks, made by placing groups of them.

The groups are placed, the plan is expanded (`Coarsening.expand_plan`), judged again on the tasks,
and gets a bound of the tasks: what is proven of the groups holds for them only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from heteroplace.coarsen.breakpoints import BreakpointOptions, default_max_tasks, fuse_segments
from heteroplace.coarsen.coarse import Coarsening, coarsen
from heteroplace.coarsen.fusion_rules import MOIRAI_RULES, fuse_by_rules
from heteroplace.errors import InfeasibleError, SolverLimitError
from heteroplace.model.memory_use.live_memory import live_peaks
from heteroplace.model.memory_use.memory import short_memories
from heteroplace.model.plan import Plan
from heteroplace.solve.deadline import Deadline
from heteroplace.solve.judge import judge_plan
from heteroplace.solve.objective import THROUGHPUT
from heteroplace.solve.problem import (
    COARSENINGS,
    Problem,
    Progress,
    ProgressReport,
    SolveOptions,
    SolveResult,
    status_of,
)
from heteroplace.solve.search.search_solver import SearchSolver

FUSE_OPS, MOIRAI, BREAKPOINTS, AUTO = COARSENINGS
_FINE_SHARE = 0.5
"""Part of the budget of "auto" for the tasks themselves."""
_BOUND_SHARE = 0.1
"""Part of the time for the bound of the tasks, for throughput: other bounds are quick."""


class SolverOfSize(Protocol):
    """A solver that says how large a graph it takes."""

    @property
    def max_tasks(self) -> int | None:
        """Tasks; None: any number."""

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `heteroplace.solve.solvers.Solver`."""


def solve_coarsened(problem: Problem, options: SolveOptions, solver: SolverOfSize) -> SolveResult:
    """Solve as `options.coarsening` says.

    "moirai" and "breakpoints" place groups. "auto" solves for the tasks in half of the budget, then
    for segments in the rest, and keeps the better plan. Where a solver does not take so many tasks,
    `SearchSolver` places them instead, and segments grow until the solver takes them; throughput
    and several items then have the plan of segments only.

    Raises
    ------
    SolverLimitError
        There is no plan of the groups, or it does not fit as one of tasks; of the tasks there may
        be one.
    InfeasibleError, SolverError
        See `Solver.solve`.
    """
    begin = time.perf_counter()
    deadline = Deadline.after(options.time_limit_s, begin)
    result = _solve_coarsened(problem, options, solver, deadline)
    return replace(result, wall_s=time.perf_counter() - begin)


def _solve_coarsened(
    problem: Problem, options: SolveOptions, solver: SolverOfSize, deadline: Deadline
) -> SolveResult:
    count = len(problem.graph.tasks)
    plain = replace(options, coarsening=FUSE_OPS)
    if options.coarsening != AUTO:
        fixed = _groups(problem, options)
        return _solve_groups(problem, fixed, plain, options.coarsening, solver, deadline)
    limit = solver.max_tasks
    is_too_large = limit is not None and count > limit
    groups = _at_most(problem, limit, options.items) if limit is not None and is_too_large else None
    if groups is not None and (options.objective == THROUGHPUT or options.items > 1):
        return _solve_groups(problem, groups, plain, AUTO, solver, deadline)
    if default_max_tasks(count, len(problem.cluster.devices)) == 1:
        return solver.solve(problem, plain)  # groups of one
    fine: SolveResult | None = None
    fault: SolverLimitError | None = None
    solve_tasks = SearchSolver().solve if is_too_large else solver.solve
    try:
        fine = solve_tasks(problem, _with_share(plain, _FINE_SHARE))
    except SolverLimitError as err:
        fault = err
    if fine is not None and fine.status != "feasible":
        return fine
    left_s = max(0.01, deadline.left_s())
    rest = replace(_with_share(plain, 1 - _FINE_SHARE), time_limit_s=left_s)
    try:
        groups = _groups(problem, options) if groups is None else groups
        coarse = _solve_groups(problem, groups, rest, AUTO, solver, deadline)
    except SolverLimitError:
        if fine is None:
            assert fault is not None  # there is no plan
            raise fault from None
        return fine
    if fine is None:
        return coarse
    tried = (*fine.candidates, *coarse.candidates)
    if is_too_large:
        tried = (*tried, (SearchSolver.name, fine.objective_ns, f"all {count} tasks"))
    better = coarse if coarse.objective_ns < fine.objective_ns else fine
    bound = max(fine.bound_ns, coarse.bound_ns)
    return replace(
        better,
        solver=coarse.solver,
        bound_ns=bound,
        status=status_of(better.objective_ns, bound, coarse.status == "interrupted"),
        candidates=tried,
    )


def _with_share(options: SolveOptions, share: float) -> SolveOptions:
    iterations = None if options.iterations is None else int(options.iterations * share)
    return replace(options, time_limit_s=options.part_s(share), iterations=iterations)


def _groups(problem: Problem, options: SolveOptions) -> Sequence[Sequence[int]]:
    if options.coarsening == MOIRAI:
        return fuse_by_rules(problem.graph, MOIRAI_RULES)
    return _segments(problem, None, options.items)


def _segments(problem: Problem, max_tasks: int | None, items: int) -> Sequence[Sequence[int]]:
    options = BreakpointOptions(max_tasks=max_tasks)
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    return fuse_segments(graph, cluster, costs, options, items=items).groups


def _at_most(problem: Problem, limit: int, items: int) -> Sequence[Sequence[int]]:
    """Segments, the smallest of which there are at most `limit`; else as few as can be."""
    count = len(problem.graph.tasks)
    max_tasks = default_max_tasks(count, len(problem.cluster.devices))
    while True:
        groups = _segments(problem, max_tasks, items)
        if len(groups) <= limit or max_tasks >= count:
            return groups
        max_tasks = min(2 * max_tasks, count)


def _solve_groups(
    problem: Problem,
    groups: Sequence[Sequence[int]],
    options: SolveOptions,
    coarsening: str,
    solver: SolverOfSize,
    deadline: Deadline,
) -> SolveResult:
    """Place the groups and expand the plan."""
    coarse = coarsen(problem.graph, groups)
    if len(coarse.members) == len(problem.graph.tasks):
        return solver.solve(problem, options)
    noted = options
    if options.objective == THROUGHPUT:
        noted = replace(options, time_limit_s=options.time_limit_s * (1 - _BOUND_SHARE))
    if options.progress is not None:
        noted = replace(noted, progress=partial(_report, coarse, options.progress))
    try:
        costs = coarse.project_costs(problem.costs, problem.cluster)
        groups_problem = replace(problem, graph=coarse.graph, costs=costs)
        result = solver.solve(groups_problem, noted)
    except InfeasibleError as err:
        raise SolverLimitError(
            f"no plan was found that keeps the {len(groups)} groups of coarsening {coarsening!r} "
            f"whole: {err} With coarsening {FUSE_OPS!r} there may be one"
        ) from err
    size = f"{len(groups)} groups of {len(problem.graph.tasks)} tasks"
    plan = replace(
        coarse.expand_plan(result.plan), origin=f"{result.plan.origin}, {size} ({coarsening})"
    )
    # A task starts earlier than its group could, when more may be live.
    peaks = live_peaks(problem.graph, problem.cluster, problem.costs, plan)
    if short_memories(problem.cluster, peaks):
        raise SolverLimitError(
            f"the plan of the {len(groups)} groups of coarsening {coarsening!r} fits in memory "
            f"only as groups start: their tasks, which start earlier, do not fit. With coarsening "
            f"{FUSE_OPS!r} there may be a plan"
        )
    tried = tuple((f"groups: {name}", value, note) for name, value, note in result.candidates)
    return judge_plan(
        problem,
        plan,
        options,
        result.solver,
        result.wall_s,
        deadline,
        candidates=((f"coarsening: {coarsening}", None, size), *tried),
        was_interrupted=result.status == "interrupted",
    )


def _report(coarse: Coarsening, progress: Progress, report: ProgressReport) -> None:
    """Tell of a plan of groups as one of tasks; nothing is proven by it."""
    make = report.plan

    def plan() -> Plan:
        assert make is not None  # else it is not called
        return coarse.expand_plan(make())

    progress(replace(report, bound_ns=0, plan=None if make is None else plan))
