"""Intervals -> seeded arrays of numbers inside, for the inputs of a function."""

from __future__ import annotations

import math

import numpy as np
from tvm import relay

from heteroplace.relay.expressions import static_shape
from heteroplace.relay.ranges.interval import BOOLEAN, Interval
from heteroplace.relay.ranges.legal import legal_inputs

_WIDTH = 4
"""Of the interval that numbers are drawn from where an end is not bounded."""


def legal_arrays(main: relay.Function, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an array for each parameter of a function whose types are inferred.

    Parameters
    ----------
    main
        Its weights are bound: every parameter is an input.
    seed
        Equal seeds give equal arrays.
    """
    legal = legal_inputs(main)
    random = np.random.default_rng(seed)
    found = {}
    for parameter in main.params:
        shape, dtype = static_shape(parameter.checked_type), parameter.checked_type.dtype
        found[parameter.name_hint] = array_in(legal.get(parameter), shape, dtype, random)
    return found


def array_in(
    interval: Interval | None, shape: tuple[int, ...], dtype: str, random: np.random.Generator
) -> np.ndarray:
    """Return random numbers of an interval: of None, normally distributed ones, or 0 and 1.

    Those of bfloat16, which numpy does not have, are bit patterns in `uint16`.
    """
    if dtype == "bfloat16":  # the upper half of a float32
        return (array_in(interval, shape, "float32", random).view("uint32") >> 16).astype("uint16")
    if interval is None and dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    goal = interval or BOOLEAN
    low = goal.low if math.isfinite(goal.low) else min(-_WIDTH / 2, goal.high - _WIDTH)
    high = goal.high if math.isfinite(goal.high) else max(_WIDTH / 2, low + _WIDTH)
    if dtype.startswith("float"):
        return random.uniform(low, high, shape).astype(dtype)
    return random.integers(math.ceil(low), math.floor(high), shape, endpoint=True).astype(dtype)
