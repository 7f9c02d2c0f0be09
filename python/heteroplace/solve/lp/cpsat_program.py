"""MixedProgram -> CP-SAT, through OR-Tools' model builder: several threads, and a start.

CP-SAT counts in whole numbers. A continuous column counts in parts of its unit
(`MixedProgram.parts`), of which some optimal solution has whole numbers in every such column.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.solve.exact.cpsat_engine import ITERATIONS_PER_DETERMINISTIC_SECOND
from heteroplace.solve.exact.one_thread import run_until_interrupt
from heteroplace.solve.lp.linear_program import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    OPTIMAL,
    FloatArray,
    MipAnswer,
    MipLimits,
    MixedProgram,
)
from heteroplace.solve.problem import SolveOptions

_LARGEST_VALUE = 2.0**40
"""Of a column, in its parts: beyond it CP-SAT would cut bounds off."""
_WORKERS, _MAX_ROWS_IN_TURNS = 8, 5_000
"""Workers of CP-SAT, which differ in how they search, that take turns on the threads, and up to how
many rows they do so on several threads. On one thread a program of 70 tasks is then proven in 4 s.
On two threads, two workers without turns found a better plan of 140 tasks."""
_MIN_S = 0.01


class CpSatEngine:
    """CP-SAT, for programs whose continuous columns may be whole numbers."""

    name = "CP-SAT"

    def __init__(self, options: SolveOptions) -> None:
        """Take threads, seed and a deterministic budget from the options of a solve."""
        self._options = options

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None = None
    ) -> MipAnswer:
        """See `MipEngine.solve`. A start may lack columns, and `limits.node_limit` does not count:
        CP-SAT has no nodes, but a deterministic time."""
        from ortools.linear_solver.python import model_builder_helper

        if program.parts is None:
            raise SolverError(
                "CP-SAT counts in whole numbers, and this program has columns that are none; use "
                "the engine 'highs'"
            )
        model: Any = model_builder_helper.ModelBuilderHelper()
        model.fill_model_from_sparse_data(
            np.array(program.lower, np.float64),
            np.array(program.upper, np.float64),
            np.array(program.cost, np.float64),
            np.array(program.row_lower, np.float64),
            np.array(program.row_upper, np.float64),
            program.matrix(),
        )
        for column in np.flatnonzero(program.is_integer).tolist():
            model.set_var_integrality(column, True)
        if start is not None:
            for column in np.flatnonzero(~np.isnan(start)).tolist():
                model.add_hint(column, float(start[column]))
        solver: Any = model_builder_helper.ModelSolverHelper("sat")
        solver.set_time_limit_in_seconds(max(_MIN_S, limits.time_limit_s))
        solver.set_solver_specific_parameters(self._parameters(program, limits))
        _, was_interrupted = run_until_interrupt(
            partial(solver.solve, model), solver.interrupt_solve
        )
        return self._answer(solver, model_builder_helper.SolveStatus, was_interrupted)

    def _parameters(self, program: MixedProgram, limits: MipLimits) -> str:
        options = self._options
        parameters = {
            "num_workers": options.threads,
            "random_seed": options.seed,
            "relative_gap_limit": limits.gap_ratio,
            "mip_var_scaling": float(program.parts or 1),
            "mip_max_bound": _LARGEST_VALUE,
            "catch_sigint_signal": "false",
        }
        is_small = program.num_rows <= _MAX_ROWS_IN_TURNS
        if is_small or options.threads == 1 or options.iterations is not None:
            parameters["num_workers"] = max(_WORKERS, options.threads)
            parameters["interleave_search"] = "true"
            parameters["interleave_batch_size"] = options.threads
        if options.iterations is not None:
            parameters["max_deterministic_time"] = (
                options.iterations / ITERATIONS_PER_DETERMINISTIC_SECOND
            )
        return " ".join(f"{name}: {value}" for name, value in parameters.items())

    def _answer(self, solver: Any, statuses: Any, was_interrupted: bool) -> MipAnswer:
        status = solver.status()
        if status == statuses.INFEASIBLE:
            return MipAnswer(None, -np.inf, INFEASIBLE)
        if status not in {
            statuses.OPTIMAL,
            statuses.FEASIBLE,
            statuses.NOT_SOLVED,
            statuses.UNKNOWN_STATUS,
            statuses.CANCELLED_BY_USER,
        }:
            raise SolverError(
                f"CP-SAT refuses the program: {solver.status_string() or status}; use the engine "
                "'highs'"
            )
        has_solution = solver.has_solution()
        values = np.array(solver.variable_values()) if has_solution else None
        bound = solver.best_objective_bound() if solver.has_response() else -math.inf
        ending = OPTIMAL if status == statuses.OPTIMAL else LIMIT
        if was_interrupted:
            ending = INTERRUPTED
        return MipAnswer(values, float(bound), ending, is_exact=True)
