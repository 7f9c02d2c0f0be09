"""MixedProgram -> Gurobi, through gurobipy (the extra `gurobi`), where it has a licence."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any

import numpy as np

from heteroplace.errors import MissingPackageError, SolverError, SolverLicenceError
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

_TOO_LARGE, _NO_LICENCE = 10010, 10009
"""Numbers of gurobipy's errors."""
_LIMITED_COLUMNS = 2000
"""What the licence that comes with the package from pip takes; rows likewise."""

_TOLERANCE = 1e-6
"""As HiGHS' own: what is taken off bounds for it holds for both."""


class GurobiEngine:
    """Gurobi with the licence that its library finds."""

    name = "Gurobi"

    def __init__(self, threads: int, seed: int) -> None:
        self._threads = threads
        self._seed = seed

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None
    ) -> MipAnswer:
        """See `MipEngine.solve`.

        Raises
        ------
        SolverLicenceError
            There is no licence, or it is for smaller models.
        MissingPackageError
            gurobipy is not installed.
        """
        gurobi = _gurobipy()
        try:
            return self._solve(gurobi, program, limits, start)
        except gurobi.GurobiError as err:
            if err.errno not in (_TOO_LARGE, _NO_LICENCE):
                raise SolverError(
                    f"Gurobi could not solve a program of {program.num_columns} columns and "
                    f"{program.num_rows} rows: {err}; use 'cpsat' or 'search'"
                ) from err
            raise SolverLicenceError(
                f"Gurobi's licence does not take this model ({program.num_columns} columns, "
                f"{program.num_rows} rows): {err}. The one from pip takes {_LIMITED_COLUMNS} of "
                f"each; install a full licence, or use HiGHS"
            ) from err

    def _solve(
        self, gurobi: Any, program: MixedProgram, limits: MipLimits, start: FloatArray | None
    ) -> MipAnswer:
        with gurobi.Env(params={"OutputFlag": 0}) as env, gurobi.Model(env=env) as model:
            model.Params.TimeLimit = max(0.01, limits.time_limit_s)
            model.Params.MIPGap = limits.gap_ratio
            model.Params.Threads = self._threads
            model.Params.Seed = self._seed
            model.Params.IntFeasTol = _TOLERANCE
            model.Params.FeasibilityTol = _TOLERANCE
            if limits.node_limit is not None:
                model.Params.NodeLimit = limits.node_limit
            columns = model.addMVar(
                program.num_columns,
                lb=np.array(program.lower),
                ub=np.array(program.upper),
                obj=np.array(program.cost),
                vtype=np.where(program.is_integer, "B", "C"),
            )
            matrix = program.matrix()
            for limit, sense in ((program.row_lower, ">"), (program.row_upper, "<")):
                values = np.array(limit)
                rows = np.flatnonzero(np.isfinite(values))
                model.addMConstr(matrix[rows], columns, sense, values[rows])
            if start is not None:
                columns.Start = np.where(np.isnan(start), gurobi.GRB.UNDEFINED, start)
            model.optimize()
            if model.Status == gurobi.GRB.INF_OR_UNBD:
                # Presolve did not tell which; without such reductions the solve does.
                model.Params.DualReductions = 0
                model.optimize()
            return self._answer(gurobi.GRB, model, columns)

    def _answer(self, constants: Any, model: Any, columns: Any) -> MipAnswer:
        status = {
            constants.OPTIMAL: OPTIMAL,
            constants.INFEASIBLE: INFEASIBLE,
            constants.INTERRUPTED: INTERRUPTED,
            constants.TIME_LIMIT: LIMIT,
            constants.NODE_LIMIT: LIMIT,
        }.get(model.Status)
        if status is None:
            raise SolverError(
                f"Gurobi ended with status {model.Status}, which is neither a result nor a limit; "
                f"use 'cpsat' or 'search'"
            )
        values = np.array(columns.X) if model.SolCount else None
        bound = -np.inf if status == INFEASIBLE else float(model.ObjBound)
        return MipAnswer(values, bound, status, int(model.NodeCount))


def _gurobipy() -> Any:
    """Return the package."""
    if importlib.util.find_spec("gurobipy") is None:
        raise MissingPackageError(
            "gurobipy is not installed; pip install 'heteroplace[gurobi]', or use HiGHS"
        )
    return importlib.import_module("gurobipy")


@cache
def why_no_gurobi() -> str | None:
    """Return why Gurobi cannot be used for models of any size; None: it can.

    A model that is one column too large for the licence from pip tells; it takes milliseconds.
    """
    program = MixedProgram()
    for _ in range(_LIMITED_COLUMNS + 1):
        program.add_column(0.0, 1.0)
    program.add_row([(0, 1.0)], 0.0, 1.0)
    limits = MipLimits(time_limit_s=1.0, gap_ratio=0.0, node_limit=None)
    try:
        GurobiEngine(threads=1, seed=0).solve(program, limits, None)
    except MissingPackageError:
        return "gurobipy is not installed"
    except SolverLicenceError as err:
        return (
            f"its licence is missing or for small models ({err.__cause__}); with a full licence "
            f"it is used"
        )
    return None
