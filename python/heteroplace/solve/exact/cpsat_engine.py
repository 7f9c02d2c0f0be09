"""Formulation -> OR-Tools CP-SAT: optional intervals and no-overlap instead of big-M rows.

A schedule that is known bounds the horizon and is given as a complete hint; whoever calls keeps it,
since CP-SAT may take long before it repeats a hint.
"""

from __future__ import annotations

import math
import time
from functools import partial

from ortools.sat.python import cp_model

from heteroplace.errors import SolverError
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.exact.formulation import Formulation
from heteroplace.solve.exact.graph_model import GraphModel
from heteroplace.solve.exact.incumbent import EngineEnd
from heteroplace.solve.exact.one_thread import run_until_interrupt
from heteroplace.solve.exact.schedule import Schedule
from heteroplace.solve.problem import ProgressReport, SolveOptions

_MIN_S = 0.01
ITERATIONS_PER_DETERMINISTIC_SECOND = 10_000
"""What one of CP-SAT's deterministic seconds is worth in `SolveOptions.iterations`."""


def solve_by_cpsat(
    formulation: Formulation,
    incumbent: Schedule | None,
    options: SolveOptions,
    deadline: Deadline,
) -> EngineEnd:
    """Solve by CP-SAT within the time, and within `options.iterations` if they are given.

    Raises
    ------
    SolverError
        Times or sizes are too large for CP-SAT.
    TimeUpError
        The deadline came before the model was built.
    """
    model = CpSatModel(formulation, incumbent, deadline)
    solver, status, was_interrupted = solve_model(model.model, options, deadline)
    if status == cp_model.MODEL_INVALID:
        raise SolverError(
            f"cpsat cannot hold graph {formulation.problem.graph.name!r}: "
            f"{model.model.validate()}; times or sizes are too large, use 'search'"
        )
    if status == cp_model.INFEASIBLE:
        return EngineEnd(None, formulation.bound_ns, True, was_interrupted)
    bound_ns = proven_ns(solver, formulation.bound_ns, model.horizon_ns)
    schedule = None if status == cp_model.UNKNOWN else model.read(solver)
    return EngineEnd(schedule, bound_ns, False, was_interrupted)


def solve_model(
    model: cp_model.CpModel, options: SolveOptions, deadline: Deadline
) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus, bool]:
    """Solve within the time, and within `options.iterations` if they are given.

    Returns
    -------
    tuple[CpSolver, CpSolverStatus, bool]
        The solver with its solution; how it ended; whether Ctrl-C ended it.
    """
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(_MIN_S, deadline.left_s())
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
    solver.parameters.catch_sigint_signal = False
    status, was_interrupted = run_until_interrupt(
        partial(solver.solve, model, report), solver.stop_search
    )
    return solver, status, was_interrupted


def proven_ns(solver: cp_model.CpSolver, bound_ns: int, horizon_ns: int) -> int:
    """Return the better one of a bound and of what a solve proved, also one without a solution."""
    # An integer in exact arithmetic; the solver reports it as a float, beyond the horizon if it
    # proved nothing.
    best_bound = solver.best_objective_bound
    is_proven = math.isfinite(best_bound) and best_bound <= horizon_ns
    return max(bound_ns, round(best_bound)) if is_proven else bound_ns


class CpSatModel(GraphModel):
    """The model of a whole graph that is solved alone, with the hint."""

    def __init__(
        self,
        formulation: Formulation,
        incumbent: Schedule | None,
        deadline: Deadline = NEVER,
    ) -> None:
        """Build it; raises TimeUpError at the deadline."""
        horizon = formulation.longest_ns if incumbent is None else incumbent.makespan_ns
        super().__init__(formulation, horizon, deadline)
        for row in formulation.memory_rows:
            self.model.add(self.charged(row) <= row.room_bytes)
        self.add_load_rows()
        self.model.minimize(self.makespan)
        if incumbent is not None:
            self.add_hint(incumbent)


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
