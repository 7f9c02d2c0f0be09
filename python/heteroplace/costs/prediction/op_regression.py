"""Measured kernels of one type of op on one device -> times of other sizes of it.

DistIR, section 4 (empirical linear regression in input sizes for products of matrices): time =
flops * a + bytes * b + c with a, b, c >= 0, by non-negative least squares. Unlike DistIR each row
is divided by its time, so relative errors count: with absolute ones the largest kernels decide
alone, and the launch overhead and the bandwidth, which small ones show, come out as noise or 0.

Far outside the measured sizes other effects rule, so predictions there are refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heteroplace.costs.work import TaskWork
from heteroplace.errors import MissingCostError

MAX_EXTRAPOLATION = 4.0
"""How many times beyond the largest, or below the smallest, measured size a prediction may be."""
MIN_SIZES = 3
"""Different sizes that a fit needs: one for each unknown."""


@dataclass(frozen=True)
class LinearCost:
    """time = flops * ns_per_flop + bytes * ns_per_byte + launch_ns."""

    ns_per_flop: float
    ns_per_byte: float
    launch_ns: float

    def ns(self, work: TaskWork) -> float:
        """Return the time of some work.

        >>> LinearCost(0.5, 0.25, 10.0).ns(TaskWork(8, 4))
        15.0
        """
        return work.flops * self.ns_per_flop + work.bytes * self.ns_per_byte + self.launch_ns


@dataclass(frozen=True)
class OpRegression:
    """A fit, how good it is, and where it holds. Made by `fit_op_regression`."""

    line: LinearCost
    num_samples: int
    r_squared: float
    """1 - (squared errors) / (squared deviations from the mean time); at most 1."""
    max_error: float
    """Largest relative error over the samples it was fitted to."""
    flops: tuple[int, int]
    """Smallest and largest that was measured."""
    bytes: tuple[int, int]
    """Smallest and largest that was measured."""

    def extrapolation(self, work: TaskWork) -> float:
        """Return how many times `work` is outside the measured sizes; 1.0 inside them."""
        ratios = [1.0]
        for value, (smallest, largest) in zip(work, (self.flops, self.bytes), strict=True):
            if value > largest:
                ratios.append(value / largest if largest else math.inf)
            elif value < smallest:
                ratios.append(smallest / value if value else math.inf)
        return max(ratios)


def fit_op_regression(samples: Sequence[tuple[TaskWork, float]]) -> OpRegression:
    """Return the line that fits best, in relative error, to (work, time in ns > 0) of one op.

    Raises
    ------
    MissingCostError
        Fewer than MIN_SIZES different sizes, or a time that is not positive.
    """
    from scipy.optimize import nnls  # 0.3 s, which reading a table need not spend

    num_sizes = len({work for work, _ in samples})
    if num_sizes < MIN_SIZES or min(ns for _, ns in samples) <= 0:
        raise MissingCostError(
            f"a regression needs times above 0 of {MIN_SIZES} different sizes, got "
            f"{len(samples)} of {num_sizes}; measure more"
        )
    times = np.array([ns for _, ns in samples], dtype=float)
    rows = np.array([(work.flops, work.bytes, 1.0) for work, _ in samples])
    relative = rows / times[:, None]
    # Columns of one size, so that the solver's tolerance means the same for each.
    norms = np.linalg.norm(relative, axis=0)
    norms[norms == 0] = 1.0
    coefficients = nnls(relative / norms, np.ones(len(times)))[0] / norms
    errors = rows @ coefficients - times
    deviation = float(np.sum((times - times.mean()) ** 2))
    squares = float(np.sum(errors**2))
    return OpRegression(
        LinearCost(*(float(value) for value in coefficients)),
        len(samples),
        1.0 - squares / deviation if deviation else float(squares == 0),
        float(np.max(np.abs(errors) / times)),
        (min(work.flops for work, _ in samples), max(work.flops for work, _ in samples)),
        (min(work.bytes for work, _ in samples), max(work.bytes for work, _ in samples)),
    )
