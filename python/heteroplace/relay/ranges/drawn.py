"""An interval -> a random array of numbers inside. Needs no TVM: commands make inputs by it."""

from __future__ import annotations

import math

import numpy as np

from heteroplace.relay.ranges.interval import BOOLEAN, FlagRows, Interval

_WIDTH = 4
"""Of the interval that numbers are drawn from where an end is not bounded."""


def middle_of(interval: Interval | None, dtype: str) -> int | None:
    """Return the middle whole number of an interval; None: of floats, flags, or without bounds."""
    if interval is None or dtype.startswith(("float", "bfloat")) or interval.is_within(BOOLEAN):
        return None
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return None
    return (math.ceil(interval.low) + math.floor(interval.high)) // 2


def array_in(
    interval: Interval | None, shape: tuple[int, ...], dtype: str, random: np.random.Generator
) -> np.ndarray:
    """Return random numbers of an interval: of None, normally distributed ones, or 0 and 1.

    Of `FlagRows` each row has as many ones as it may, at random places.

    Those of bfloat16, which numpy does not have, are bit patterns in `uint16`.
    """
    if dtype == "bfloat16":  # the upper half of a float32
        bits = array_in(interval, shape, "float32", random).view("uint32")
        return np.asarray(bits >> 16, "uint16")  # shifted, an array of one number is none any more
    if interval is None and dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    if isinstance(interval, FlagRows):
        ranks = random.random(shape).argsort(axis=-1).argsort(axis=-1)
        return (ranks < interval.most).astype(dtype)
    goal = interval or BOOLEAN
    low = goal.low if math.isfinite(goal.low) else min(-_WIDTH / 2, goal.high - _WIDTH)
    high = goal.high if math.isfinite(goal.high) else max(_WIDTH / 2, low + _WIDTH)
    if dtype.startswith("float"):
        return random.uniform(low, high, shape).astype(dtype)
    return random.integers(math.ceil(low), math.floor(high), shape, endpoint=True).astype(dtype)
