"""MixedProgram -> HiGHS, through scipy: its own copy, since highspy's clashes with OR-Tools'."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from heteroplace.errors import SolverError
from heteroplace.solve.exact.mip_program import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    OPTIMAL,
    MipAnswer,
    MipLimits,
    MixedProgram,
)
from heteroplace.solve.linear_program import FloatArray

_STATUS = {0: OPTIMAL, 1: LIMIT, 2: INFEASIBLE}
"""Of `scipy.optimize.milp`."""
_LEAST_S = 0.01


class HighsEngine:
    """HiGHS as scipy offers it: one thread, no start, no calls back."""

    name = "HiGHS"

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None
    ) -> MipAnswer:
        """See `MipEngine.solve`. `start` is not used."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        goal = np.zeros(program.num_columns)
        goal[program.goal] = 1.0
        options: dict[str, float] = {
            "time_limit": max(_LEAST_S, limits.time_limit_s),
            "mip_rel_gap": limits.gap_ratio,
        }
        if limits.node_limit is not None:
            options["node_limit"] = limits.node_limit
        call = _Call(
            milp,
            goal,
            integrality=np.array(program.is_integer, dtype=np.int64),
            bounds=Bounds(np.array(program.lower), np.array(program.upper)),
            constraints=LinearConstraint(program.matrix(), program.row_lower, program.row_upper),
            options=options,
        )
        found = call.result()
        if found is None:
            return MipAnswer(None, -np.inf, INTERRUPTED)
        if found.status not in _STATUS:
            raise SolverError(
                f"HiGHS could not solve a programme of {program.num_columns} columns and "
                f"{program.num_rows} rows: {found.message}; use 'cpsat' or 'search'"
            )
        # The objective of a solution is no bound where a gap was allowed.
        bound = found.mip_dual_bound
        nodes = found.mip_node_count
        return MipAnswer(
            found.x,
            -np.inf if bound is None else float(bound),
            _STATUS[found.status],
            0 if nodes is None else int(nodes),
        )


class _Call:
    """A call in a thread of its own, so that Ctrl-C is seen while it lasts.

    Python handles signals between the steps of the main thread, and HiGHS is one long step. What
    is left behind by Ctrl-C ends by its own time limit; it holds nothing that others wait for.
    """

    def __init__(self, function: Any, *args: Any, **kwargs: Any) -> None:
        self._found: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._found = function(*args, **kwargs)
            except BaseException as err:
                self._error = err

        self._thread = threading.Thread(target=run, name="HiGHS", daemon=True)

    def result(self) -> Any:
        """Run to the end; None after Ctrl-C."""
        self._thread.start()
        try:
            self._thread.join()
        except KeyboardInterrupt:
            return None
        if self._error is not None:
            raise self._error
        return self._found
