"""Sparse linear programmes, solved by HiGHS through scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heteroplace.errors import SolverError

FloatArray = npt.NDArray[np.float64]
Entries = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]
"""Row, column and value of entries of a matrix; those of one place are added up."""


class LinearProgram:
    """Minimise `cost` over `lower` <= x <= `upper` and rows that are added. Scale it near 1."""

    def __init__(self, num_columns: int) -> None:
        self.cost = np.zeros(num_columns)
        self.lower = np.zeros(num_columns)
        self.upper = np.full(num_columns, np.inf)
        self._entries: dict[bool, list[Entries]] = {True: [], False: []}
        self._limits: dict[bool, list[FloatArray]] = {True: [], False: []}

    def add_rows(self, limits: FloatArray, *entries: Entries, is_equal: bool = False) -> None:
        """Add rows `entries` <= `limits`, or =; rows of `entries` count from 0."""
        first = sum(len(part) for part in self._limits[is_equal])
        self._limits[is_equal].append(limits)
        for row, column, value in entries:
            self._entries[is_equal].append((row + first, column, value))

    def solve(self, name: str) -> FloatArray | None:
        """Return x at a corner of the optimum, the same one every time; None: there is none.

        Raises
        ------
        SolverError
            HiGHS gave up; the message has `name`.
        """
        from scipy.optimize import linprog

        found = linprog(
            self.cost,
            A_ub=self._matrix(is_equal=False),
            b_ub=self._limit(is_equal=False),
            A_eq=self._matrix(is_equal=True),
            b_eq=self._limit(is_equal=True),
            bounds=np.stack([self.lower, self.upper], axis=1),
            method="highs-ds",
        )
        if found.status == 2:
            return None
        if found.status != 0:
            raise SolverError(
                f"HiGHS could not solve the linear programme of {name!r} ({len(self.cost)} "
                f"columns): {found.message}; use a solver that needs none, such as 'etf'"
            )
        values: FloatArray = found.x
        return values

    def _limit(self, is_equal: bool) -> FloatArray | None:
        limits = self._limits[is_equal]
        return np.concatenate(limits) if limits else None

    def _matrix(self, is_equal: bool) -> Any:
        from scipy.sparse import coo_matrix

        entries = self._entries[is_equal]
        if not entries:
            return None
        row, column, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        num_rows = sum(len(part) for part in self._limits[is_equal])
        return coo_matrix((value, (row, column)), shape=(num_rows, len(self.cost))).tocsr()
