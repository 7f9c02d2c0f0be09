"""Measured values at small batch sizes -> the value at a large one, by a line in the batch size.

Celeritas ("Celeritas: Fast Optimizer for Large Dataflow Graphs", section 4.1): the memory of a node
is a line in the batch size, `mem(B) = a B + a0`, by least squares; the same for its time, which is
only a rough guide.

Unlike Celeritas, times are fitted by relative residuals, as their noise grows with them; a time
never falls with the batch, and no prediction for a larger batch is below what was measured. A node
whose time does not depend on the batch (a constant fits it no worse than the line, by the residual
per degree of freedom) is a constant. The smallest batch is left out where it is far off the line of
the others: compilers make other code for one item (TVM's is up to twice as fast per item, as its
index arithmetic then knows no batch).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from heteroplace.errors import CostMismatchError
from heteroplace.stats import line_fit

LINEAR = "linear"
CONSTANT = "constant"

KINDS = ("memory", "time")

NOISE_RATIO = 0.03
"""What medians in place differ by from round to round, relative."""
OTHER_CODE_RATIO = 0.05
"""A smallest batch that is further than this off the line of the others is left out."""


@dataclass(frozen=True)
class BatchFit:
    """A line in the batch size, and how well it fits."""

    slope: float
    """Growth with each item, in the unit of the values; 0 if constant."""
    intercept: float
    """Value at a batch of none, in the same unit."""
    residual_ratio: float
    """Root mean square of the residuals, relative to the measured values."""
    form: str
    """LINEAR or CONSTANT."""
    floor: float
    """No prediction is below it: the largest measured value of a time; 0 for memory."""
    batches: tuple[int, ...]
    """Batch sizes that the line was fitted to, ascending."""
    noise_ratio: float = 0.0
    """How far single values are off at least, relative: a line through two points shows none."""

    def predict(self, batch: int) -> float:
        """Return the value at a batch size; what lies between measured sizes is not floored."""
        value = self.slope * batch + self.intercept
        return max(value, self.floor) if batch >= self.batches[-1] else max(value, 0.0)

    def error_ratio(self, batch: int) -> float:
        """Estimate the relative error of `predict(batch)`.

        The residual, and what it can turn the line by: it grows with the distance of `batch` from
        the mean of the measured sizes, in units of their spread (the prediction interval of simple
        regression with one standard deviation).
        """
        residual = max(self.residual_ratio, self.noise_ratio)
        if self.form == CONSTANT:
            return residual
        number = len(self.batches)
        mean = sum(self.batches) / number
        spread = sum((size - mean) ** 2 for size in self.batches)
        value = self.predict(batch)
        middle = max(self.slope * mean + self.intercept, 0.0)
        scale = middle / value if value > 0 else 0.0  # residuals are relative to smaller values
        leverage = 1 / number + (batch - mean) ** 2 / spread
        return residual * sqrt(1 + leverage * scale)


def fit_batches(
    batches: Sequence[int],
    values: Sequence[float],
    kind: str = "time",
    likely_intercept: float | None = None,
) -> BatchFit:
    """Fit values that were measured at several batch sizes.

    Parameters
    ----------
    batches
        At least two different sizes, each > 0, in any order.
    values
        What was measured at each, >= 0: bytes, or ns.
    kind
        "memory": plain least squares, a line always. "time": relative residuals, slope and
        intercept not negative, a constant where a line is no better.
    likely_intercept
        What a time may well have that does not depend on the batch (fetching the weights,
        launching), in ns. The intercept is then held by it as by a measurement with that much
        noise, against `NOISE_RATIO` of the values: small batches say little about the intercept,
        and what noise makes of it is missing from the slope. None: it is free.

    Raises
    ------
    CostMismatchError
        Too few sizes, a value for each is missing, or one is negative.

    Examples
    --------
    >>> fit = fit_batches([8, 16, 24], [110, 190, 270], kind="memory")
    >>> round(fit.slope), round(fit.intercept), round(fit.predict(128))
    (10, 30, 1310)
    """
    _check(batches, values, kind)
    pairs = sorted(zip(batches, values, strict=True))
    sizes = tuple(size for size, _ in pairs)
    measured = [float(value) for _, value in pairs]
    if kind == "memory":
        slope, intercept = line_fit(sizes, measured, [1.0] * len(sizes))
        residual = _residual(sizes, measured, slope, intercept)
        return BatchFit(slope, intercept, residual, LINEAR, 0.0, sizes)
    floor = max(measured)
    if len(sizes) > 2:
        rest = _fit_time(sizes[1:], measured[1:], floor, likely_intercept)
        expected = rest.slope * sizes[0] + rest.intercept
        if abs(expected - measured[0]) > OTHER_CODE_RATIO * measured[0]:
            return rest  # the smallest batch is other code
    return _fit_time(sizes, measured, floor, likely_intercept)


def _fit_time(
    sizes: Sequence[int], measured: Sequence[float], floor: float, likely_intercept: float | None
) -> BatchFit:
    weights = [1.0 / max(value, 1.0) ** 2 for value in measured]
    if likely_intercept is None:
        slope, intercept = line_fit(sizes, measured, weights)
    else:
        # A measurement at a batch of none that found nothing, with its own noise.
        held = (NOISE_RATIO / max(likely_intercept, 1.0)) ** 2
        slope, intercept = line_fit([0, *sizes], [0.0, *measured], [held, *weights])
    if intercept < 0.0:
        slope, intercept = line_fit(sizes, measured, weights, intercept=0.0)
    level = sum(w * y for w, y in zip(weights, measured, strict=True)) / sum(weights)
    flat = _residual(sizes, measured, 0.0, level)
    line = _residual(sizes, measured, slope, intercept)
    free = len(sizes) - 2  # what the line leaves over; the constant leaves one more
    is_flat = slope <= 0.0 or (free > 0 and flat * sqrt(free) <= line * sqrt(free + 1))
    if is_flat:
        return BatchFit(0.0, level, flat, CONSTANT, floor, tuple(sizes), NOISE_RATIO)
    return BatchFit(slope, intercept, line, LINEAR, floor, tuple(sizes), NOISE_RATIO)


def _check(batches: Sequence[int], values: Sequence[float], kind: str) -> None:
    if kind not in KINDS:
        raise CostMismatchError(f"{kind!r} cannot be fitted; expected one of {', '.join(KINDS)}")
    if len(batches) != len(values):
        raise CostMismatchError(
            f"{len(values)} values for {len(batches)} batch sizes; each size needs one"
        )
    if len(set(batches)) < 2 or min(batches) < 1 or len(set(batches)) < len(batches):
        raise CostMismatchError(
            f"batch sizes {list(batches)}: a line needs two or more different ones, each > 0; "
            f"measure at another size"
        )
    if min(values) < 0:
        raise CostMismatchError(f"measured {list(values)}; expected values >= 0")


def _residual(
    sizes: Sequence[int], values: Sequence[float], slope: float, intercept: float
) -> float:
    """Root mean square of the residuals relative to the values; zero values count as one."""
    squares = [
        ((slope * x + intercept - y) / max(y, 1.0)) ** 2 for x, y in zip(sizes, values, strict=True)
    ]
    return sqrt(sum(squares) / len(squares))
