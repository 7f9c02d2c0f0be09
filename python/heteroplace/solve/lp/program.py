"""A mixed-integer linear programme as data, and what an engine answers to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from heteroplace.solve.lp.linear_program import FloatArray

Terms = list[tuple[int, float]]
"""(column, coefficient) of each term of a sum; those of one column are added up."""

OPTIMAL, INFEASIBLE, LIMIT, INTERRUPTED = "optimal", "infeasible", "limit", "interrupted"
"""`MipAnswer.status`: within the gap that was asked for; proven empty; out of time or nodes; ended
by Ctrl-C."""


class MixedProgram:
    """Minimise one column under bounds and rows, which may be added between two solves.

    Scale it so that values are near 1: the tolerances of engines are absolute.
    """

    def __init__(self) -> None:
        self.goal = 0
        """The column that is minimised."""
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.is_integer: list[bool] = []
        self.row_lower: list[float] = []
        self.row_upper: list[float] = []
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

    def add_column(self, lower: float, upper: float, *, is_integer: bool = False) -> int:
        """Add a variable and return its id."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        return len(self.lower) - 1

    def add_binary(self) -> int:
        """Add a variable that is 0 or 1 and return its id."""
        return self.add_column(0.0, 1.0, is_integer=True)

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


class MipEngine(Protocol):
    """Solves mixed-integer programmes."""

    @property
    def name(self) -> str:
        """What people call it."""

    def solve(
        self, program: MixedProgram, limits: MipLimits, start: FloatArray | None
    ) -> MipAnswer:
        """Minimise; `start` is a solution that is known, for engines that take one.

        Raises
        ------
        SolverError
            The engine gave up.
        """
