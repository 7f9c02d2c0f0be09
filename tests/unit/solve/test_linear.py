"""Linear programs: the optimum with its multipliers, or that there is none."""

from __future__ import annotations

import math

import numpy as np

from heteroplace.solve.lp.linear import LinearFailure, LinearOptimum, linear_optimum, optimal_values
from heteroplace.solve.lp.linear_program import MixedProgram


def program(least: float) -> MixedProgram:
    """Maximise x + 2 y; x + y <= 3, x = 1, and y >= least."""
    found = MixedProgram()
    x, y = found.add_column(0.0, 5.0, cost=-1.0), found.add_column(least, 5.0, cost=-2.0)
    found.add_row([(x, 1.0), (y, 1.0)], -math.inf, 3.0)
    found.add_row([(x, 1.0)], 1.0, 1.0)
    return found


def test_the_optimum_comes_with_multipliers() -> None:
    found = linear_optimum(program(0.0), time_limit_s=60.0)
    assert isinstance(found, LinearOptimum)
    np.testing.assert_allclose(found.values, [1.0, 2.0])
    np.testing.assert_allclose(found.multipliers, [2.0])


def test_that_nothing_meets_the_rows_is_told() -> None:
    found = linear_optimum(program(2.5), time_limit_s=60.0)
    assert isinstance(found, LinearFailure)
    assert found.is_infeasible and not found.is_late
    assert optimal_values(program(2.5), "test") is None
