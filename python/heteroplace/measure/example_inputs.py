"""What the inputs of a measured program are: given arrays, or made-up numbers that are legal.

A value that an op divides by, or that says where another one reads, must be in a range; see
`relay/ranges`. Where legality is not certain, a run in a process of its own comes first
(`trial.py`), as a trap would end this one.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from heteroplace.codegen.kernels import Value
from heteroplace.errors import ExecutionError
from heteroplace.relay.ranges.interval import BOOLEAN

_WIDTH = 4
"""Of the interval that numbers are drawn from where an end is not bounded."""


def read_examples(source: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return arrays by name, from a map of them or from a file of numpy (.npz).

    Raises
    ------
    ExecutionError
        The file cannot be read, or holds Python objects.
    """
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return {name: np.asarray(array) for name, array in source.items()}
    try:
        found = np.load(source, allow_pickle=False)
        arrays = None if isinstance(found, np.ndarray) else dict(found)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as err:
        raise ExecutionError(f"{source}: no arrays that numpy can read (.npz): {err}") from err
    if arrays is None:
        raise ExecutionError(f"{source}: one array without a name; write them by numpy.savez")
    return arrays


def input_arrays(values: tuple[Value, ...]) -> dict[str, np.ndarray]:
    """Return an array for each value that is an input, by its name; the same in every call."""
    random = np.random.default_rng(0)
    return {
        value.input_name: made_up(value, random) for value in values if value.input_name is not None
    }


def made_up(value: Value, random: np.random.Generator) -> np.ndarray:
    """Return data for a value: its example, numbers in its range, or any that are legal."""
    if value.example is not None:
        is_opaque = value.example.dtype.name == "bfloat16"  # a type that the core takes by its bits
        return value.example.view(np.uint16) if is_opaque else value.example
    shape, dtype = value.shape, value.dtype
    if dtype == "bfloat16":  # numpy has none; zeros have the same bits in any type
        return np.zeros(shape, "uint16")
    if value.range is None and dtype.startswith("float"):
        return random.standard_normal(shape).astype(dtype)
    goal = value.range or BOOLEAN
    low = goal.low if math.isfinite(goal.low) else min(-_WIDTH / 2, goal.high - _WIDTH)
    high = goal.high if math.isfinite(goal.high) else max(_WIDTH / 2, low + _WIDTH)
    if dtype.startswith("float"):
        return random.uniform(low, high, shape).astype(dtype)
    return random.integers(math.ceil(low), math.floor(high), shape, endpoint=True).astype(dtype)
