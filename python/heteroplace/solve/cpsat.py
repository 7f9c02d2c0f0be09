"""Solve the exact model (`heteroplace.solve.cpsat_model`) by OR-Tools CP-SAT.

The best heuristic plan bounds the horizon and is given as a complete hint; it is kept outside the
solver, which may take long before it repeats a hint.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from heteroplace.errors import SolverError
from heteroplace.model.plan import Step
from heteroplace.solve.base import (
    MAX_CPSAT_TASKS,
    Problem,
    ProgressReport,
    SolveOptions,
    SolveResult,
    make_result,
)
from heteroplace.solve.bounds import lower_bound
from heteroplace.solve.cpsat_model import ScheduleModel
from heteroplace.solve.heft import check_possible, no_placement_error
from heteroplace.solve.search import run_search
from heteroplace.solve.starts import Starts

ITERATIONS_PER_DETERMINISTIC_SECOND = 10_000
"""What one of CP-SAT's deterministic seconds is worth in `SolveOptions.iterations`."""
_START_EVALUATIONS = 50_000
"""Schedules tried by the search that makes the incumbent."""


class CpSatSolver:
    """Exact solver for up to MAX_CPSAT_TASKS tasks."""

    name = "cpsat"

    def solve(self, problem: Problem, options: SolveOptions) -> SolveResult:
        """See `Solver.solve`. SolverError above MAX_CPSAT_TASKS tasks."""
        begin = time.perf_counter()
        if len(problem.graph.tasks) > MAX_CPSAT_TASKS:
            raise SolverError(
                f"cpsat takes at most {MAX_CPSAT_TASKS} tasks, graph {problem.graph.name!r} has "
                f"{len(problem.graph.tasks)}; use 'search' or 'auto', or coarsen the graph"
            )
        check_possible(problem)
        bound = lower_bound(problem).ns
        starts = [draft for _, draft in Starts(problem).drafts(options.time_limit_s / 4)]
        incumbent: tuple[Step, ...] | None = None
        if starts:
            short = SolveOptions(seed=options.seed, iterations=_START_EVALUATIONS)
            found = run_search(problem, starts, short, options.time_limit_s / 4, bound)
            bound = max(bound, found.bound_ns)
            if found.draft.violation == 0:
                incumbent = found.draft.steps
        left = max(0.1, options.time_limit_s - (time.perf_counter() - begin))
        end = run_cpsat(problem, incumbent, options, left, bound)
        if end.steps is None:
            raise no_placement_error(problem, is_proven=end.is_infeasible)
        plan = problem.native.plan(end.steps, f"cpsat seed {options.seed}")
        return make_result(problem, plan, end.bound_ns, self.name, time.perf_counter() - begin)


@dataclass(frozen=True)
class CpSatEnd:
    """How a run of CP-SAT ended."""

    steps: tuple[Step, ...] | None
    """The shorter of its plan and the incumbent; None: there is neither."""
    bound_ns: int
    is_infeasible: bool
    """It is proven that no placement exists."""


def run_cpsat(
    problem: Problem,
    incumbent: Sequence[Step] | None,
    options: SolveOptions,
    time_limit_s: float,
    bound_ns: int,
) -> CpSatEnd:
    """Solve the exact model, starting from `incumbent` if there is one."""
    if not problem.graph.tasks:
        return CpSatEnd(() if incumbent is None else tuple(incumbent), 0, False)
    model = ScheduleModel(problem, incumbent, bound_ns)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_search_workers = options.threads
    solver.parameters.random_seed = options.seed
    if options.iterations is not None:
        solver.parameters.max_deterministic_time = (
            options.iterations / ITERATIONS_PER_DETERMINISTIC_SECOND
        )
        # Workers take turns in a fixed order; without it their exchange depends on the clock.
        solver.parameters.interleave_search = True
    begin = time.perf_counter()
    report = None if options.progress is None else _Report(options, begin)
    status = _solve_keeping_signals(solver, model.model, report)
    best = None if incumbent is None else tuple(incumbent)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(
            f"cpsat cannot hold graph {problem.graph.name!r}: {model.model.validate()}; times or "
            f"sizes are too large, use 'search'"
        )
    if status == cp_model.INFEASIBLE and incumbent is None:
        return CpSatEnd(None, bound_ns, True)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = model.read_steps(solver)
        native = problem.native
        if best is None or (native.simulate(found).makespan_ns < native.simulate(best).makespan_ns):
            best = found
        # The bound is an integer in exact arithmetic; the solver reports it as a float.
        bound_ns = max(bound_ns, round(solver.best_objective_bound))
    return CpSatEnd(best, bound_ns, False)


def _solve_keeping_signals(
    solver: cp_model.CpSolver, model: cp_model.CpModel, report: _Report | None
) -> cp_model.CpSolverStatus:
    """Solve; Ctrl-C ends it early with its best plan.

    OR-Tools takes over SIGINT and afterwards leaves the system's default, which would end the whole
    process at the next Ctrl-C: Python's handler is put back. Only the main thread may do that, so
    in other threads OR-Tools must not touch the signal.
    """
    is_main = threading.current_thread() is threading.main_thread()
    solver.parameters.catch_sigint_signal = is_main
    handler = signal.getsignal(signal.SIGINT)
    try:
        return solver.solve(model, report)
    finally:
        if is_main and handler is not None:
            signal.signal(signal.SIGINT, handler)


class _Report(cp_model.CpSolverSolutionCallback):
    """Passes each better plan on to the caller's progress function."""

    def __init__(self, options: SolveOptions, begin: float) -> None:
        super().__init__()
        self._options = options
        self._begin = begin

    def on_solution_callback(self) -> None:
        if self._options.progress is not None:
            elapsed = time.perf_counter() - self._begin
            best, bound = round(self.objective_value), round(self.best_objective_bound)
            self._options.progress(ProgressReport("cpsat", elapsed, best, bound))
