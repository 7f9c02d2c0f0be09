"""MixedProgram without integers -> its optimum at a corner, by HiGHS through scipy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heteroplace.errors import SolverError, SolverLimitError
from heteroplace.solve.deadline import NEVER, Deadline
from heteroplace.solve.lp.linear_program import FloatArray, MixedProgram

_LIMIT, _INFEASIBLE = 1, 2
"""Of `scipy.optimize.linprog`."""


@dataclass(frozen=True)
class LinearOptimum:
    """A corner of the optimum."""

    values: FloatArray
    """[num_columns]"""
    multipliers: FloatArray
    """For each row that is no equation, in order: its Lagrange multiplier, >= 0 up to rounding."""


@dataclass(frozen=True)
class LinearFailure:
    """Why there is no optimum."""

    is_infeasible: bool
    """Nothing meets the rows."""
    is_late: bool
    """The time was up. Neither: HiGHS gave up."""
    message: str
    """What HiGHS says."""


def linear_optimum(
    program: MixedProgram,
    *,
    time_limit_s: float | None = None,
    method: Literal["highs", "highs-ds"] = "highs",
) -> LinearOptimum | LinearFailure:
    """Return the optimum, the same one every time; or why there is none.

    Parameters
    ----------
    program
        Its rows are equations or have an upper limit alone.
    time_limit_s
        Wall time in seconds; None: any.
    method
        "highs-ds": the dual simplex method; "highs": HiGHS chooses.
    """
    from scipy.optimize import linprog

    lower, upper = np.array(program.row_lower), np.array(program.row_upper)
    is_equal = lower == upper
    matrix = program.matrix()
    begin = time.perf_counter()
    for presolve in (True, False):  # presolve is wrong about infeasible ones at times (`highs`)
        options: dict[str, float] = {"presolve": presolve}
        if time_limit_s is not None:
            options["time_limit"] = max(0.0, time_limit_s - (time.perf_counter() - begin))
        optimum = linprog(
            program.cost,
            A_ub=matrix[~is_equal],
            b_ub=upper[~is_equal],
            A_eq=matrix[is_equal],
            b_eq=upper[is_equal],
            bounds=np.stack([program.lower, program.upper], axis=1),
            method=method,
            options=options,
        )
        if optimum.status != _INFEASIBLE:
            break
    if optimum.status != 0:
        return LinearFailure(
            optimum.status == _INFEASIBLE, optimum.status == _LIMIT, str(optimum.message)
        )
    return LinearOptimum(optimum.x, -np.asarray(optimum.ineqlin.marginals))


def optimal_values(
    program: MixedProgram, name: str, deadline: Deadline = NEVER
) -> FloatArray | None:
    """Return a corner of the optimum by the dual simplex method; None: nothing meets the rows.

    Raises
    ------
    SolverError
        HiGHS gave up; the message has `name`.
    SolverLimitError
        The deadline passed.
    """
    limit_s = None if deadline == NEVER else deadline.left_s()
    optimum = linear_optimum(program, time_limit_s=limit_s, method="highs-ds")
    if isinstance(optimum, LinearFailure):
        if optimum.is_infeasible:
            return None
        if optimum.is_late:
            raise SolverLimitError(f"the linear program of {name!r} was not solved in time")
        raise SolverError(
            f"HiGHS could not solve the linear program of {name!r} ({program.num_columns} "
            f"columns): {optimum.message}; use a solver that needs none, such as 'etf'"
        )
    return optimum.values
