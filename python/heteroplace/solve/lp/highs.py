"""MixedProgram -> HiGHS, through scipy: its own copy, since highspy's clashes with OR-Tools'."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from heteroplace.errors import SolverError
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

_OPTIMAL, _LIMIT, _INFEASIBLE, _GAVE_UP = 0, 1, 2, 4
"""What `scipy.optimize.milp` says."""
_STATUS = {_OPTIMAL: OPTIMAL, _LIMIT: LIMIT, _INFEASIBLE: INFEASIBLE}
_FACTORS = (1.0, 2.0, 7.0)
"""Of the objective, tried in turn while HiGHS ends in an error of its own (a solution that is off
by its tolerance is rounded and then refused); another factor avoids it."""
_SECOND_FACTOR = 3.0
"""Of the objective in the solve that confirms the first one."""
_NODES_UP = "Solution limit reached"
"""What HiGHS says when the limit of nodes came before any solution; scipy knows no status for it,
and gives no bound."""
_MIN_S = 0.01


class HighsEngine:
    """HiGHS as scipy offers it: one thread, no start, no calls back."""

    name = "HiGHS"

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None = None
    ) -> MipAnswer:
        """See `MipEngine.solve`. `start` is not used."""
        result = _Call(program, limits).result()
        if result is None:
            return MipAnswer(None, -np.inf, INTERRUPTED)
        if _is_out_of_nodes(result):
            return MipAnswer(None, -np.inf, LIMIT)
        if result.status not in _STATUS:
            raise SolverError(
                f"HiGHS could not solve a program of {program.num_columns} columns and "
                f"{program.num_rows} rows: {result.message}; use 'cpsat' or 'search'"
            )
        # The objective of a solution is no bound where a gap was allowed.
        bound = result.mip_dual_bound
        nodes = result.mip_node_count
        return MipAnswer(
            result.x,
            -np.inf if bound is None else float(bound),
            _STATUS[result.status],
            0 if nodes is None else int(nodes),
        )


def _is_out_of_nodes(result: Any) -> bool:
    return result.status == _GAVE_UP and _NODES_UP in result.message


class _Call:
    """A solve in a thread of its own, so that Ctrl-C is seen while it lasts.

    Python handles signals between the steps of the main thread, and HiGHS is one long step. What
    is left behind by Ctrl-C ends by its own time limit; it holds nothing that others wait for. It
    is no daemon: leaving the process in the middle of HiGHS is a crash.
    """

    def __init__(self, program: MixedProgram, limits: MipLimits) -> None:
        self._program = program
        self._limits = limits
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="HiGHS")

    def result(self) -> Any:
        """Run to the end; None after Ctrl-C."""
        try:
            self._thread.start()
            self._thread.join()
        except KeyboardInterrupt:
            return None
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._try_factors()
        except BaseException as err:
            self._error = err

    def _try_factors(self) -> Any:
        """Solve until HiGHS ends without an error of its own, within the time."""
        deadline = time.perf_counter() + self._limits.time_limit_s
        for factor in _FACTORS:
            result = self._solve(factor, deadline - time.perf_counter())
            if result.status != _GAVE_UP or _is_out_of_nodes(result):
                break
        left_s = deadline - time.perf_counter()
        if result.status not in (_OPTIMAL, _INFEASIBLE) or left_s < _MIN_S:
            return result
        # HiGHS 1.12 loses solutions at times, so its optimum may be wrong. With another factor it
        # searches in another order.
        other = self._solve(_SECOND_FACTOR * factor, left_s)
        is_better = other.status == _OPTIMAL and (
            result.status == _INFEASIBLE or self._cost(other) < self._cost(result)
        )
        return other if is_better else result

    def _cost(self, result: Any) -> float:
        return float(np.dot(self._program.cost, result.x))

    def _solve(self, factor: float, time_limit_s: float) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp

        program = self._program
        options: dict[str, float] = {
            # The presolve of HiGHS 1.12 (scipy 1.17) loses solutions: it calls worse ones optimal
            # and feasible programs infeasible (https://github.com/ERGO-Code/HiGHS/issues/2432).
            "presolve": False,
            "time_limit": max(_MIN_S, time_limit_s),
            "mip_rel_gap": self._limits.gap_ratio,
        }
        if self._limits.node_limit is not None:
            options["node_limit"] = self._limits.node_limit
        result = milp(
            factor * np.array(program.cost),
            integrality=np.array(program.is_integer, dtype=np.int64),
            bounds=Bounds(np.array(program.lower), np.array(program.upper)),
            constraints=LinearConstraint(program.matrix(), program.row_lower, program.row_upper),
            options=options,
        )
        if result.mip_dual_bound is not None:
            result.mip_dual_bound /= factor
        return result
