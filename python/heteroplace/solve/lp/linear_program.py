"""A linear or mixed-integer linear program as data, and what an engine answers to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Entries = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], FloatArray]
"""Row, column and value of entries of a matrix; those of one place are added up."""
Terms = list[tuple[int, float]]
"""(column, coefficient) of each term of a sum; those of one column are added up."""

OPTIMAL, INFEASIBLE, LIMIT, INTERRUPTED = "optimal", "infeasible", "limit", "interrupted"
"""`MipAnswer.status`: within the gap that was asked for; proven empty; out of time or nodes; ended
by Ctrl-C."""


class MixedProgram:
    """Minimise a sum over columns under bounds and rows, which may be added between two solves.

    Scale it so that values are near 1: the tolerances of engines are absolute.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        """Of each column in the sum that is minimised."""
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.is_integer: list[bool] = []
        self.row_lower: list[float] = []
        self.row_upper: list[float] = []
        self.parts: int | None = None
        """Some optimal solution has whole multiples of 1 / parts in all continuous columns; None:
        that is not known."""
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []

    @property
    def num_columns(self) -> int:
        """Variables."""
        return len(self.lower)

    @property
    def num_rows(self) -> int:
        """Constraints, without bounds."""
        return len(self.row_lower)

    def add_column(
        self, lower: float, upper: float, *, cost: float = 0.0, is_integer: bool = False
    ) -> int:
        """Add a variable and return its id."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        return len(self.lower) - 1

    def add_binary(self) -> int:
        """Add a variable that is 0 or 1 and return its id."""
        return self.add_column(0.0, 1.0, is_integer=True)

    def add_columns(
        self,
        count: int,
        lower: npt.ArrayLike = 0.0,
        upper: npt.ArrayLike = np.inf,
        cost: float = 0.0,
    ) -> None:
        """Add `count` continuous variables; bounds for all or for each of them."""
        self.cost.extend([cost] * count)
        self.lower.extend(np.broadcast_to(np.asarray(lower, np.float64), count).tolist())
        self.upper.extend(np.broadcast_to(np.asarray(upper, np.float64), count).tolist())
        self.is_integer.extend([False] * count)

    def add_row(
        self, terms: Iterable[tuple[int, float]], lower: float = 0.0, upper: float = np.inf
    ) -> None:
        """Add `lower` <= terms <= `upper`."""
        sums: dict[int, float] = {}
        for column, value in terms:
            sums[column] = sums.get(column, 0.0) + value
        self._row.extend([self.num_rows] * len(sums))
        self._column.extend(sums)
        self._value.extend(sums.values())
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def add_rows(self, limits: FloatArray, *entries: Entries, is_equal: bool = False) -> None:
        """Add rows `entries` <= `limits`, or =; rows of `entries` count from 0."""
        for row, column, value in entries:
            self._row.extend((np.asarray(row) + self.num_rows).tolist())
            self._column.extend(np.asarray(column).tolist())
            self._value.extend(np.asarray(value, np.float64).tolist())
        bounds = np.asarray(limits, np.float64).tolist()
        self.row_lower.extend(bounds if is_equal else [-np.inf] * len(bounds))
        self.row_upper.extend(bounds)

    def matrix(self) -> Any:
        """Return the rows as a scipy CSR matrix."""
        from scipy.sparse import coo_matrix

        shape = (self.num_rows, self.num_columns)
        return coo_matrix((self._value, (self._row, self._column)), shape=shape).tocsr()


@dataclass(frozen=True)
class MipLimits:
    """When an engine stops."""

    time_limit_s: float
    gap_ratio: float
    """(objective - bound) / objective that is enough."""
    node_limit: int | None
    """Nodes of the tree; None: any number."""


@dataclass(frozen=True)
class MipAnswer:
    """What an engine found."""

    values: FloatArray | None
    """[num_columns] of the best solution; None: there is none."""
    bound: float
    """No solution is smaller; -inf: nothing is proven."""
    status: str
    num_nodes: int = 0
    is_exact: bool = False
    """The bound is of sums of whole numbers, and off by the rounding of a float alone."""


class MipEngine(Protocol):
    """Solves mixed-integer programs."""

    @property
    def name(self) -> str:
        """What people call it."""

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None
    ) -> MipAnswer:
        """Minimise; `start` is a known solution, for engines that take one. NaN: the value of a
        column is not known.

        Raises
        ------
        SolverError
            The engine gave up.
        """
