"""A sparse mixed-integer linear programme, solved by HiGHS through scipy."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Terms = list[tuple[int, float]]
"""(column, factor) of each term of a sum."""

_FACTORS = (1.0, 2.0, 7.0)
"""Of the objective, tried in turn while HiGHS ends in an error of its own (status 4: a solution
that is off by its tolerance is rounded and then refused); another factor avoids it."""
_GAVE_UP = 4
_POLL_S = 0.05
"""How often the main thread looks for Ctrl-C while HiGHS works."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a solve ended."""

    values: FloatArray | None
    """The best solution; None: none was found."""
    bound: float
    """No solution has a smaller objective; -inf: nothing is proven."""
    is_infeasible: bool
    """It is proven that there is no solution."""
    was_interrupted: bool
    """Ctrl-C ended it; what HiGHS had found is lost."""
    failure: str = ""
    """What HiGHS said if it gave up."""


class MixedProgram:
    """Columns, rows and the column that is minimised. Scale it so that times are near 1."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._is_integer: list[bool] = []
        self._rows: list[dict[int, float]] = []
        self._row_upper: list[float] = []
        self._row_lower: list[float] = []

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._lower)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def binary(self) -> int:
        """Add a column that is 0 or 1."""
        return self._add_column(0.0, 1.0, True)

    def continuous(self, lower: float = 0.0, upper: float = math.inf) -> int:
        """Add a column."""
        return self._add_column(lower, upper, False)

    def add_row(self, terms: Terms, upper: float, lower: float = -math.inf) -> None:
        """Add lower <= terms <= upper. Terms of one column are added up, as HiGHS demands."""
        sums: dict[int, float] = {}
        for column, factor in terms:
            sums[column] = sums.get(column, 0.0) + factor
        self._rows.append(sums)
        self._row_upper.append(upper)
        self._row_lower.append(lower)

    def add_equation(self, terms: Terms, value: float) -> None:
        """Add terms = value."""
        self.add_row(terms, value, value)

    def minimise(
        self, objective: int, time_limit_s: float, node_limit: int | None = None
    ) -> ProgramEnd:
        """Minimise a column for at most so long and so many nodes."""
        ends: list[Any] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                ends.append(self._try(objective, time_limit_s, node_limit))
            except (ValueError, MemoryError) as error:
                errors.append(error)

        # HiGHS neither looks for Ctrl-C nor ends by it: it is left behind until its time is over,
        # and not as a daemon, because leaving the process in the middle of it is a crash.
        worker = threading.Thread(target=work)
        try:
            worker.start()
            while worker.is_alive():
                worker.join(_POLL_S)
        except KeyboardInterrupt:
            return ProgramEnd(None, -math.inf, False, True)
        if errors:
            raise errors[0]
        (found,) = ends
        bound = found.mip_dual_bound
        is_bounded = bound is not None and math.isfinite(bound)
        failure = found.message if found.status == _GAVE_UP else ""
        return ProgramEnd(
            found.x, bound if is_bounded else -math.inf, found.status == 2, False, failure
        )

    def _try(self, objective: int, time_limit_s: float, node_limit: int | None) -> Any:
        """Run HiGHS until it ends without an error, within the time."""
        begin = time.perf_counter()
        for factor in _FACTORS:
            left = time_limit_s - (time.perf_counter() - begin)
            found = self._run(objective, left, node_limit, factor)
            if found.status != _GAVE_UP:
                break
        if found.mip_dual_bound is not None:
            found.mip_dual_bound /= factor
        return found

    def _run(
        self, objective: int, time_limit_s: float, node_limit: int | None, factor: float
    ) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        goal = np.zeros(self.num_columns)
        goal[objective] = factor
        rows = np.repeat(np.arange(self.num_rows), [len(row) for row in self._rows])
        columns = np.fromiter(_flat(row.keys() for row in self._rows), dtype=np.int64)
        factors = np.fromiter(_flat(row.values() for row in self._rows), dtype=np.float64)
        matrix = coo_array((factors, (rows, columns)), shape=(self.num_rows, self.num_columns))
        options: dict[str, float] = {"time_limit": max(0.01, time_limit_s), "mip_rel_gap": 0.0}
        if node_limit is not None:
            options["node_limit"] = node_limit
        return milp(
            goal,
            integrality=np.array(self._is_integer, dtype=np.int64),
            bounds=Bounds(np.array(self._lower), np.array(self._upper)),
            constraints=LinearConstraint(matrix.tocsr(), self._row_lower, self._row_upper),
            options=options,
        )

    def _add_column(self, lower: float, upper: float, is_integer: bool) -> int:
        self._lower.append(lower)
        self._upper.append(upper)
        self._is_integer.append(is_integer)
        return len(self._lower) - 1


def _flat(parts: Iterable[Iterable[Any]]) -> Iterable[Any]:
    for part in parts:
        yield from part
