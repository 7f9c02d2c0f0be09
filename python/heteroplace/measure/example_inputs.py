"""What the inputs of a measured program are: given arrays, or made-up numbers that are legal.

A value that an op divides by, or that says where another one reads, should be in a range; see
`relay/ranges`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from heteroplace.entries import load_entry
from heteroplace.lower.kernels import Value

_ARRAY_IN = "heteroplace.relay.ranges.drawn:array_in"
_MIDDLE_OF = "heteroplace.relay.ranges.drawn:middle_of"
_READ_ARRAYS = "heteroplace.run.array_files:read_arrays"
"""Loaded when numbers are made up, or read."""


def read_examples(source: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return arrays by name, from a map of them or from a file of numpy (.npz).

    Whatever their order of memory and of bytes was, they are as the core takes them.

    Raises
    ------
    ExecutionError
        The file cannot be read, or holds Python objects.
    """
    if source is None:
        return {}
    given = source if isinstance(source, Mapping) else load_entry(_READ_ARRAYS)(source)
    return {name: _native(np.asarray(array)) for name, array in given.items()}


def _native(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def input_arrays(values: tuple[Value, ...]) -> dict[str, np.ndarray]:
    """Return an array for each value that is an input, by its name; the same in every call."""
    random = np.random.default_rng(0)
    return {
        value.input_name: made_up(value, random) for value in values if value.input_name is not None
    }


def made_up(value: Value, random: np.random.Generator) -> np.ndarray:
    """Return data for a value: what it is at first, its example, or random numbers in its range.

    A whole number that is alone is the middle of its range: it may say how much work there is, as
    the tokens of a cache do. Calls of all lengths are then measured with equally long caches.
    """
    if value.initial is not None:
        return value.initial
    if value.example is None:
        middle = load_entry(_MIDDLE_OF)(value.range, value.dtype)
        if middle is not None and math.prod(value.shape) == 1:
            return np.full(value.shape, middle, value.dtype)
        array: np.ndarray = load_entry(_ARRAY_IN)(value.range, value.shape, value.dtype, random)
        return array
    is_opaque = value.example.dtype.name == "bfloat16"  # a type that the core takes by its bits
    return value.example.view(np.uint16) if is_opaque else value.example
