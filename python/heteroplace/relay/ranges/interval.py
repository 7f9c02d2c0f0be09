"""A closed interval of numbers, and its arithmetic.

Source: Moore, "Interval Analysis", chapter 3 (bounds of sums, products and hulls).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from `low` to `high`, both included; infinite ends mean no bound."""

    low: float
    high: float

    def contains(self, number: float) -> bool:
        """Say whether a number is inside."""
        return self.low <= number <= self.high

    def is_within(self, other: Interval) -> bool:
        """Say whether all of it is in another one."""
        return other.low <= self.low and self.high <= other.high

    def meet(self, other: Interval) -> Interval | None:
        """Return what is in both; None: nothing."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high) if low <= high else None

    def moved(self, low: float, high: float) -> Interval:
        """Return it with the ends moved."""
        return Interval(self.low + low, self.high + high)


@dataclass(frozen=True, slots=True)
class FlagRows(Interval):
    """Flags, 0 and 1, of which each row (of the last axis) has a few that are 1."""

    most: int
    """So many of a row are 1 at most."""

    def meet(self, other: Interval) -> Interval | None:
        """Return what is in both, still of so few in a row; None: nothing."""
        met = Interval.meet(self, other)
        return None if met is None else FlagRows(met.low, met.high, self.most)


EVERYTHING = Interval(-math.inf, math.inf)
BOOLEAN = Interval(0, 1)


def hull(parts: Iterable[Interval]) -> Interval:
    """Return the smallest interval around some."""
    several = list(parts)
    return Interval(min(part.low for part in several), max(part.high for part in several))


def span_of(numbers: Iterable[float]) -> Interval:
    """Return the smallest interval around numbers; what is undefined (0 x inf) has no bound."""
    several = list(numbers)
    if any(math.isnan(number) for number in several):
        return EVERYTHING
    return Interval(min(several), max(several))


def product(left: Interval, right: Interval) -> Interval:
    """Return what the product of two numbers may be."""
    return span_of(a * b for a in (left.low, left.high) for b in (right.low, right.high))


def of_dtype(dtype: str) -> Interval:
    """Return the numbers of a type; of floating-point types all."""
    if dtype == "bool":
        return BOOLEAN
    digits = dtype.lstrip("uint")
    if dtype.startswith("uint"):
        return Interval(0, 2 ** int(digits) - 1)
    if dtype.startswith("int"):
        return Interval(-(2 ** (int(digits) - 1)), 2 ** (int(digits) - 1) - 1)
    return EVERYTHING
